// The button that makes the server sync its folders and tables, and the progress of the sync.

import * as api from "./api.js";
import { withKey } from "./feedback.js";

const $ = (id) => document.getElementById(id);
const PAUSE_MS = 1000; // between two requests for the progress

export function enableSync(canSync, onChange) {
  $("sync").hidden = !canSync;
  $("sync").onclick = () => sync(onChange);
}

async function sync(onChange) {
  $("sync").disabled = true;
  try {
    let status = await withKey(api.startSync);
    while (status && (status.running || status.requested)) {
      show(progress(status));
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      status = await api.syncStatus();
    }
    if (status) {
      show(result(status.last));
      onChange();
    }
  } catch (error) {
    show(error.message);
  } finally {
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
