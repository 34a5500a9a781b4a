// Parses a file into columns of texts: .txt (one per line), .csv and .tsv, .jsonl and .json.

const TEXT_NAMES = ["text", "texts", "sentence", "content", "body", "question", "title", "description", "abstract", "message"];

/** The rows of a CSV; cells may contain quotes and line breaks. */
export function csvRows(source, delimiter) {
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
    const character = source[at];
    if (quoted) {
      if (character !== '"') cell += character;
      else if (source[at + 1] === '"') (cell += '"'), (at += 1);
      else quoted = false;
    } else if (character === '"' && cell === "") quoted = true;
    else if (character === delimiter) endCell();
    else if (character === "\n") endRow();
    else if (character !== "\r" || source[at + 1] !== "\n") cell += character;
  }
  if (cell !== "" || row.length) endRow();
  return rows;
}

/** The delimiter of a CSV: the one that the first line has most of. */
export function separator(source) {
  const first = source.slice(0, source.search(/\n|$/));
  const count = (delimiter) => first.split(delimiter).length;
  return [",", "\t", ";"].reduce((best, delimiter) => (count(delimiter) > count(best) ? delimiter : best));
}

function fromRows(rows) {
  const width = Math.max(0, ...rows.slice(0, 1000).map((row) => row.length));
  const head = rows[0] ?? [];
  const named = head.some((name) => TEXT_NAMES.includes(name.trim().toLowerCase()));
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

function jsonDocument(source) {
  try {
    const content = JSON.parse(source);
    return Array.isArray(content) ? content : [content];
  } catch {
    throw new Error("This is not JSON.");
  }
}

/** `columns(header)` gives [{name, texts}]; `header` is a guess for CSV and null for other formats. */
export function parsed(name, source) {
  const clean = source.replace(/^\uFEFF/, "");
  const ending = name.toLowerCase().split(".").pop();
  if (ending === "csv" || ending === "tsv") return fromRows(csvRows(clean, ending === "tsv" ? "\t" : separator(clean)));
  if (ending === "jsonl" || ending === "ndjson") return fromRecords(jsonLines(clean));
  if (ending === "json") return fromRecords(jsonDocument(clean));
  return fromRecords(lines(clean));
}

export const lines = (source) => source.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);

/** The column that most likely contains the texts: a common name, else the longest texts. */
export function likely(columns) {
  const named = columns.findIndex(({ name }) => TEXT_NAMES.includes(name.toLowerCase()));
  if (named >= 0) return named;
  const length = ({ texts }) => texts.reduce((sum, text) => sum + text.length, 0);
  return columns.reduce((best, column, at) => (length(column) > length(columns[best]) ? at : best), 0);
}
