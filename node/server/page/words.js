/** What a failure means to the person in front of the page, and what they can do next. */

/**
 * @param {import("./api.js").Failure} failure
 * @param {{hasKey: boolean, isFirst: boolean, hasText: boolean}} context
 * @returns {{title: string, text: string, next: "again" | "fresh" | "key" | "edit"}}
 */
export function explain(failure, { hasKey, isFirst, hasText }) {
  const { kind, status, code } = failure;
  const kept = hasText ? "The answer is kept as far as it came." : "Your question is kept.";
  if (kind === "cut" && hasText) return words("The connection was lost.", kept);
  if (kind === "network" || kind === "cut") {
    return words(
      "The node cannot be reached.",
      `${kept} Check that the node is switched on and this screen is connected to it.`,
    );
  }
  if (code === "context_length_exceeded" || status === 413) return tooLong(isFirst);
  if (kind === "stream") return words("The node broke off.", said(failure, kept));
  if (status === 401) {
    return hasKey
      ? words("The node did not accept this key.", "Check it and enter it again.", "key")
      : words("This node asks for a key.", "Whoever set it up can give you one.", "key");
  }
  if (status === 429) return words("The node is still busy.", `${kept} Try again in a moment.`);
  if (status === 503) {
    return words(
      "The node is not ready.",
      `It is starting or shutting down. ${kept} Try again when the light above says Ready.`,
    );
  }
  if (status >= 500 || status === 404) return words("The node could not answer.", said(failure, kept));
  return words("The node refused this question.", said(failure, "Change it and send it again."), "edit");
}

const words = (title, text, next = "again") => ({ title, text, next });

function tooLong(isFirst) {
  return isFirst
    ? words("This question is too long for the model.", "Shorten it and send it again.", "edit")
    : words(
        "This conversation is too long for the model.",
        "It cannot read any further back. A new conversation starts with your question.",
        "fresh",
      );
}

/** The node's own words first. */
function said({ message }, rest) {
  const text = String(message).trim();
  return text ? `${text}${/[.!?]$/.test(text) ? "" : "."} ${rest}` : rest;
}
