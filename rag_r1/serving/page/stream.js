// Reads the chunks of an answer, which the chat API sends as server-sent events.

const LONGEST_EVENT = 1 << 23;   // characters; the API sends no longer event

export async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    if (rest.length > LONGEST_EVENT) throw new Error("The answer is not of the chat API's form.");
    for (const event of events) {
      if (event === "data: [DONE]") return;
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}
