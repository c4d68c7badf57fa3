// What the page says to its server, and the bytes that it gets from there.

let text = 'starting';

/** What the page is doing now; shown to whoever waits for it. */
export const doing = () => text;

/** @param {string} words */
export function say(words) {
  text = words;
  const line = document.getElementById('doing');
  if (line) line.textContent = words;
}

/**
 * @param {string} path
 * @param {BodyInit} body
 */
export async function post(path, body) {
  const answer = await fetch(path, { method: 'POST', body });
  if (!answer.ok) throw new Error(`POST ${path}: HTTP ${answer.status}`);
}

/** @param {string} name @returns {Promise<Uint8Array>} */
export async function receive(name) {
  const answer = await fetch(`/data/${name}`);
  if (!answer.ok) throw new Error(`data ${name}: HTTP ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}
