// The ways a picture comes in: chosen, pasted or dropped anywhere on the page.

const $ = (id) => document.getElementById(id);

export function onPicture(take) {
  $("pick").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    take($("file").files[0]);
    $("file").value = ""; // the same file may be chosen again
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (!file) return;
    event.preventDefault();
    take(file);
  });
  onDrop(take);
}

function onDrop(take) {
  let depth = 0; // dragenter and dragleave also come for every element inside
  const files = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const end = () => {
    depth = 0;
    $("drop").hidden = true;
  };
  window.addEventListener("dragenter", (event) => {
    if (files(event) && ++depth) $("drop").hidden = false;
  });
  window.addEventListener("dragleave", () => {
    if (--depth <= 0) end();
  });
  window.addEventListener("dragover", (event) => files(event) && event.preventDefault());
  window.addEventListener("drop", (event) => {
    if (!files(event)) return;
    event.preventDefault();
    end();
    take(event.dataTransfer.files[0]);
  });
}
