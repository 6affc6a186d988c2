// The button that makes the server sync its folders and tables, and the progress of the sync.

import * as api from "./api.js";
import { withKey } from "./feedback.js";

const $ = (id) => document.getElementById(id);
const PAUSE_MS = 1000; // between two requests for the progress
const REFRESH = 10; // pauses between two updates of the numbers of items
let following = false;

export function enableSync(canSync, onChange) {
  $("sync").hidden = !canSync;
  $("sync").onclick = () => follow(onChange, true);
  if (canSync) follow(onChange, false); // the service syncs when it starts
}

/** Show the progress of the sync that runs, or that is started now, and then its result. */
async function follow(onChange, start) {
  if (following) return;
  following = true;
  try {
    let status = start ? await withKey(api.startSync) : await api.syncStatus();
    const wasRunning = status && (status.running || status.requested);
    for (let polls = 1; status && (status.running || status.requested); polls++) {
      $("sync").disabled = true;
      show(progress(status));
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      status = await api.syncStatus();
      if (polls % REFRESH === 0) onChange();
    }
    if (wasRunning && status?.last) {
      show(result(status.last));
      onChange();
    }
  } catch (error) {
    if (start) show(error.message);
  } finally {
    following = false;
    $("sync").disabled = false;
  }
}

const show = (text) => {
  $("sync-status").textContent = text;
};

function progress({ task, done, total }) {
  if (!task) return "Sync starts";
  return total ? `${task}: ${done.toLocaleString("en")} of ${total.toLocaleString("en")}` : task;
}

function result(last) {
  const counts = ["added", "updated", "removed", "skipped"].filter((name) => last[name]);
  const changes = counts.map((name) => `${name} ${last[name].toLocaleString("en")}`).join(", ");
  return [last.error, changes || "No changes"].filter(Boolean).join(" ");
}
