// Ways to provide an image: choose, paste, or drop it anywhere on the page.

const $ = (id) => document.getElementById(id);

export function onImage(search) {
  $("choose-image").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    search($("file").files[0]);
    $("file").value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (!file) return;
    event.preventDefault();
    search(file);
  });
  onDrop(search);
}

function onDrop(search) {
  let depth = 0; // dragenter and dragleave also fire for every element inside
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const end = () => {
    depth = 0;
    $("drop").hidden = true;
  };
  window.addEventListener("dragenter", (event) => {
    if (hasFiles(event) && ++depth) $("drop").hidden = false;
  });
  window.addEventListener("dragleave", () => {
    if (--depth <= 0) end();
  });
  window.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  window.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    end();
    search(event.dataTransfer.files[0]);
  });
}
