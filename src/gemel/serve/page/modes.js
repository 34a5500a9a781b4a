// The modes of a search, as a person reads them.

export const MODES = {
  dense: "Meaning",
  sparse: "Weighted words",
  late: "Token by token",
  words: "Exact words",
  hybrid: "Several rankings, fused",
};

/** The modes in which texts of the visitor can be searched, from the answer of /info. */
export function textModes({ model_type: kinds = {} }) {
  return ["dense", ...(kinds.sparse ? ["sparse"] : []), ...(kinds.late_interaction ? ["late"] : []), "words", "hybrid"];
}
