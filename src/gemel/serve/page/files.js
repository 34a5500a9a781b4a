// A dropped file to columns of texts: .txt (a line each), .csv and .tsv, .jsonl and .json.

const USUAL = ["text", "texts", "sentence", "content", "body", "question", "title", "description", "abstract", "message"];

/** Cells of a CSV, quotes and line breaks within them included. */
export function csvRows(source, mark) {
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  const endCell = () => {
    row.push(cell);
    cell = "";
  };
  const endRow = () => {
    endCell();
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  };
  for (let at = 0; at < source.length; at += 1) {
    const sign = source[at];
    if (quoted) {
      if (sign !== '"') cell += sign;
      else if (source[at + 1] === '"') (cell += '"'), (at += 1);
      else quoted = false;
    } else if (sign === '"' && cell === "") quoted = true;
    else if (sign === mark) endCell();
    else if (sign === "\n") endRow();
    else if (sign !== "\r" || source[at + 1] !== "\n") cell += sign;
  }
  if (cell !== "" || row.length) endRow();
  return rows;
}

/** The sign that parts the cells: the one that the first line has most of. */
export function separator(source) {
  const first = source.slice(0, source.search(/\n|$/));
  const count = (mark) => first.split(mark).length;
  return [",", "\t", ";"].reduce((best, mark) => (count(mark) > count(best) ? mark : best));
}

function fromRows(rows) {
  const width = Math.max(0, ...rows.slice(0, 1000).map((row) => row.length));
  const head = rows[0] ?? [];
  const named = head.some((name) => USUAL.includes(name.trim().toLowerCase()));
  const looksNamed = named || (width > 1 && head.every((name) => name.trim() && name.length < 40 && Number.isNaN(Number(name))));
  const made = (header) => {
    const body = header ? rows.slice(1) : rows;
    return Array.from({ length: width }, (_, at) => ({
      name: (header && head[at]?.trim()) || `column ${at + 1}`,
      texts: body.map((row) => (row[at] ?? "").trim()).filter(Boolean),
    }));
  };
  return { header: looksNamed, columns: made };
}

function fromRecords(records) {
  const columns = new Map();
  const add = (name, text) => {
    if (typeof text !== "string" || !text.trim()) return;
    if (!columns.has(name)) columns.set(name, []);
    columns.get(name).push(text.trim());
  };
  for (const record of records) {
    if (typeof record === "string") add("text", record);
    else for (const [name, value] of Object.entries(record ?? {})) add(name, value);
  }
  return { header: null, columns: () => [...columns].map(([name, texts]) => ({ name, texts })) };
}

function jsonLines(source) {
  return source.split("\n").flatMap((line, at) => {
    if (!line.trim()) return [];
    try {
      return [JSON.parse(line)];
    } catch {
      throw new Error(`Line ${at + 1} is not JSON.`);
    }
  });
}

function jsonWhole(source) {
  try {
    const whole = JSON.parse(source);
    return Array.isArray(whole) ? whole : [whole];
  } catch {
    throw new Error("This is not JSON.");
  }
}

/** `columns(header)` gives [{name, texts}]; `header` is a guess for CSV and null where there is no such question. */
export function parsed(name, source) {
  const clean = source.replace(/^\uFEFF/, "");
  const ending = name.toLowerCase().split(".").pop();
  if (ending === "csv" || ending === "tsv") return fromRows(csvRows(clean, ending === "tsv" ? "\t" : separator(clean)));
  if (ending === "jsonl" || ending === "ndjson") return fromRecords(jsonLines(clean));
  if (ending === "json") return fromRecords(jsonWhole(clean));
  return fromRecords(lines(clean));
}

export const lines = (source) => source.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);

/** The column that most likely holds the texts: a usual name, else the longest texts. */
export function likely(columns) {
  const usual = columns.findIndex(({ name }) => USUAL.includes(name.toLowerCase()));
  if (usual >= 0) return usual;
  const length = ({ texts }) => texts.reduce((sum, text) => sum + text.length, 0);
  return columns.reduce((best, column, at) => (length(column) > length(columns[best]) ? at : best), 0);
}
