// What the server says. A page that was saved as one file carries the answers that it needs, and asks nobody.

const leaf = document.getElementById("leaf"); // {address: [kind, base64]}
const kept = leaf ? JSON.parse(leaf.textContent) : null;
export const alone = kept !== null;

export class Refused extends Error {}

export function address(path, params = {}) {
  const known = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  known.sort(([one], [other]) => (one < other ? -1 : 1)); // so that the same question has the same address
  return known.length ? `${path}?${new URLSearchParams(known)}` : path;
}

// The bytes of an answer, or an Error whose message is the server's own sentence.
export async function raw(path, params = {}, options = {}) {
  const where = address(path, params);
  if (alone) return fromLeaf(where);
  let answer;
  try {
    answer = await fetch(where, options);
    if (answer.ok) return await answer.arrayBuffer();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The studio does not answer: it was stopped. Start it again, and open the address that it prints.");
  }
  const said = await answer.json().catch(() => ({}));
  const ended = answer.status === 403 ? "This studio was started anew; open the address that it printed last." : null;
  const refused = new Refused(ended ?? said.error ?? `The studio answered with ${answer.status}.`);
  refused.status = answer.status;
  throw refused;
}

export async function json(path, params = {}, options = {}) {
  return JSON.parse(new TextDecoder().decode(await raw(path, params, options)));
}

export async function binary(path, params = {}, options = {}) {
  return unpack(await raw(path, params, options));
}

export function post(path, params, body, options = {}) {
  const json_ = !(body instanceof Blob);
  return json(path, params, {
    method: "POST", body: json_ ? JSON.stringify(body) : body,
    headers: { "Content-Type": json_ ? "application/json" : "application/octet-stream" }, ...options,
  });
}

// Of a picture, for <img src>.
export function picture(id, size) {
  const where = address("api/picture", { picture: id, size });
  if (!alone) return where;
  return kept[where] ? `data:${kept[where][0]};base64,${kept[where][1]}` : "data:,";
}

// As pack.py writes it: typed arrays that lie in the buffer itself.
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { facts, arrays } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  const kinds = { f32: Float32Array, u8: Uint8Array, i32: Int32Array };
  const made = {};
  for (const [name, { type, shape, at }] of Object.entries(arrays)) {
    made[name] = { shape, data: new kinds[type](buffer, start + at, shape.reduce((size, side) => size * side, 1)) };
  }
  return { facts, arrays: made };
}

function fromLeaf(where) {
  if (!kept[where]) throw new Refused("This page is a copy on its own; start the studio to see more.");
  const text = atob(kept[where][1]);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
  return bytes.buffer;
}
