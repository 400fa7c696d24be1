// A served page asks its server for the lines that came since, and takes them in. A sheet that somebody is
// using is left as it is until he asks for what is new.
function follow(files, take) {
  const box = document.getElementById("live"), text = document.getElementById("live-text"), show = document.getElementById("live-show");
  let touched = false, waiting = false;
  box.hidden = false;
  text.textContent = "following";
  const renew = () => { waiting = touched = false; show.hidden = true; take(); };
  show.addEventListener("click", renew);
  for (const kind of ["pointerdown", "keydown", "input", "wheel"])
    document.getElementById("main").addEventListener(kind, () => { touched = true; }, {passive: true, capture: true});
  function add(answer) {
    let lines = 0;
    arr(answer.files).map(obj).forEach((part, i) => {
      if (!files[i]) files[i] = {name: str(part.name), left_out: 0, lines: [], at: 0};
      const file = files[i];
      if (part.anew === true) { file.lines = []; file.left_out = 0; }
      for (const line of arr(part.lines)) file.lines.push(line);
      lines += arr(part.lines).length;
      file.left_out = num(file.left_out) + num(part.left_out);
      file.at = num(part.at);
    });
    return lines;
  }
  async function look() {
    let pause = 1000;
    try {
      const reply = await fetch("more/" + files.map(f => num(f.at)).join(","), {cache: "no-store"});
      if (!reply.ok) throw new Error("status " + reply.status);
      const lines = add(obj(await reply.json())), begun = performance.now();
      if (lines) waiting = true;
      if (waiting && !touched) renew();
      show.hidden = !waiting;
      text.textContent = waiting ? "new lines are there" : "following, " + new Date().toLocaleTimeString("en-GB");
      pause = Math.max(pause, 5 * (performance.now() - begun));
    } catch (error) {
      text.textContent = "the server does not answer";
      pause = 3000;
    }
    setTimeout(look, pause);
  }
  setTimeout(look, 1000);
  return () => { touched = false; };
}
