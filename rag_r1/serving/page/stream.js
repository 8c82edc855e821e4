// The chunks of a stream of server-sent events, as the chat API sends them.

const LONGEST_EVENT = 1 << 23;   // characters; a longer event is not this API's

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
