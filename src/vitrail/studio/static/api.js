// Requests to the server. A standalone page carries the responses that it needs, and sends no requests.

const savedElement = document.getElementById("saved-responses"); // {url: [media type, base64]}
const savedResponses = savedElement ? JSON.parse(savedElement.textContent) : null;
export const standalone = savedResponses !== null;

export class ApiError extends Error {}

export function requestUrl(path, params = {}) {
  const entries = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  entries.sort(([a], [b]) => (a < b ? -1 : 1)); // equal requests have equal URLs
  return entries.length ? `${path}?${new URLSearchParams(entries)}` : path;
}

// The bytes of a response, or an Error with the server's own message.
export async function fetchBytes(path, params = {}, options = {}) {
  const url = requestUrl(path, params);
  if (standalone) return fromSaved(url);
  let response;
  try {
    response = await fetch(url, options);
    if (response.ok) return await response.arrayBuffer();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The studio does not respond; start it again, and open the address that it prints.");
  }
  const errorBody = await response.json().catch(() => ({}));
  const restarted = response.status === 403 ? "The studio was restarted; open the address that it printed last." : null;
  const failure = new ApiError(restarted ?? errorBody.error ?? `The studio answered with ${response.status}.`);
  failure.status = response.status;
  throw failure;
}

export async function fetchJson(path, params = {}, options = {}) {
  return JSON.parse(new TextDecoder().decode(await fetchBytes(path, params, options)));
}

export async function fetchArrays(path, params = {}, options = {}) {
  return decodeArrays(await fetchBytes(path, params, options));
}

export function post(path, params, body, options = {}) {
  const isJson = !(body instanceof Blob);
  return fetchJson(path, params, {
    method: "POST", body: isJson ? JSON.stringify(body) : body,
    headers: { "Content-Type": isJson ? "application/json" : "application/octet-stream" }, ...options,
  });
}

// The URL of an image, for <img src>. `boxes`: with the objects of its dataset.
export function imageUrl(id, size, boxes = false) {
  const url = requestUrl("api/image", { image: id, size, boxes: boxes ? 1 : null });
  if (!standalone) return url;
  return savedResponses[url] ? `data:${savedResponses[url][0]};base64,${savedResponses[url][1]}` : "data:,";
}

// Decode binary_format.py: typed arrays that are views of the buffer.
export function decodeArrays(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { meta, arrays } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  const dtypes = { f32: Float32Array, u8: Uint8Array, i32: Int32Array };
  const decoded = {};
  for (const [name, { type, shape, offset }] of Object.entries(arrays)) {
    decoded[name] = { shape, data: new dtypes[type](buffer, start + offset, shape.reduce((size, side) => size * side, 1)) };
  }
  return { meta, arrays: decoded };
}

function fromSaved(url) {
  if (!savedResponses[url]) throw new ApiError("This is a saved page; start the studio to see more.");
  const text = atob(savedResponses[url][1]);
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) bytes[index] = text.charCodeAt(index);
  return bytes.buffer;
}
