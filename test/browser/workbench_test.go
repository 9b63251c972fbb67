//go:build !race

package browser_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ahprelay/auth"
	"ahprelay/broker/registry"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/faultproxy"
	"ahprelay/test/procs"
	"ahprelay/test/stack"
)

// Tests VS Code's own workbench as a client: the page of a VS Code server, whose
// bridge connects to the relay. They run only in make interop. The host needs an agent
// with the id "mock" that answers the prompts "hello", "tool", "permission" and
// "stream N MS SIZE", as in VS Code's own tests.
const (
	workbenchVariable     = "AHP_WORKBENCH"      // path of the server's server-main.js
	workbenchNodeVariable = "AHP_WORKBENCH_NODE" // Node.js for it; default: node
	upstreamVariable      = "AHP_UPSTREAM"       // URL of the host
	clientsVariable       = "AHP_CLIENTS_DIR"    // acpx, as make clients installs it
)

// The agent's answers.
const (
	saidHello = "Hello, world!"
	saidTool  = "Tool done."
	allowed   = "Allowed."
)

// A workbenchSite is a relay and a host-agent in front of a host, for workbench
// windows.
type workbenchSite struct {
	*site
	tap     *stack.Tap // between the windows and the relay
	address string     // of the relay and the windows' servers, without a port
	folder  string     // the windows' folder: they list its sessions
	servers int
}

// startWorkbenchSite starts a site, or skips the test.
func startWorkbenchSite(t *testing.T) *workbenchSite {
	t.Helper()
	upstream := os.Getenv(upstreamVariable)
	if os.Getenv(workbenchVariable) == "" || upstream == "" {
		t.Skipf("%s names no workbench, or %s no host: VS Code is not driven (make interop)", workbenchVariable, upstreamVariable)
	}
	s := &workbenchSite{site: newSite(t), folder: t.TempDir()}
	var err error
	s.address, err = procs.FreeAddress()
	must(t, err)
	data := s.file("relay-data")
	must(t, os.Mkdir(data, 0o700))
	s.keys, err = auth.LoadKeys(data)
	must(t, err)
	listen := net.JoinHostPort(s.address, "8484")
	s.url = "http://" + listen
	s.tap, err = stack.NewTap("ws://" + listen)
	must(t, err)
	t.Cleanup(s.tap.Close)
	s.tellsOf(s.tap, "windows")
	s.relay = s.bench.Process("", "relay", procs.RelayProgram, "serve", "--data-dir", data, "--listen", listen, "--admin-listen", gateway.NoListener, "--drain", "1s")
	token, err := s.keys.Tokens().IssueHost(auth.Enrolment{Tenant: s.tenant, Host: hostName, Expires: time.Now().Add(time.Hour)})
	must(t, err)
	must(t, os.WriteFile(s.file("token"), []byte(token), 0o600))
	s.agent = s.bench.Process("", "host-agent", procs.AgentProgram, "run", "--relay", s.url, "--token-file", s.file("token"), "--upstream", upstream, "--control", "off")
	s.startRelay()
	s.startHostAgent()
	t.Cleanup(func() { s.site.end(s.agent); s.site.end(s.relay) })
	return s
}

// tellsOf logs the last messages on a tap's connections if the test fails.
func (s *workbenchSite) tellsOf(tap *stack.Tap, name string) {
	const last, longest = 60, 400
	s.t.Cleanup(func() {
		if !s.t.Failed() {
			return
		}
		for i, c := range tap.Conns() {
			for from, messages := range map[string][][]byte{"window": c.ToHost(), "host": c.ToClient()} {
				for _, m := range messages[max(0, len(messages)-last):] {
					s.t.Logf("%s, connection %d, from the %s: %.*s", name, i, from, longest, m)
				}
			}
		}
	})
}

// startRelay starts the relay and returns when it accepts clients.
func (s *workbenchSite) startRelay() {
	s.t.Helper()
	must(s.t, s.relay.Launch(s.t.Context(), func() error { return procs.Ready(http.DefaultClient, s.url) }))
}

// startHostAgent starts the host-agent and returns when its host is online.
func (s *workbenchSite) startHostAgent() {
	s.t.Helper()
	token := s.token(time.Hour)
	must(s.t, s.agent.Launch(s.t.Context(), func() error { return s.online(token) }))
}

// startedAgain returns when the host is online at a restarted relay.
func (s *workbenchSite) startedAgain() {
	s.t.Helper()
	token := s.token(time.Hour)
	deadline, tick := time.After(patience), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for s.online(token) != nil {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("the host is not online after its restart: %v", s.online(token))
		}
	}
}

// online returns an error until the host is online.
func (s *workbenchSite) online(token string) error {
	info, err := procs.GetJSON[hostsapi.Info](s.t.Context(), s.url+"/api/hosts/"+hostName, token)
	if err == nil && info.State != registry.Online {
		err = fmt.Errorf("host is %s: %s", info.State, info.Reason)
	}
	return err
}

// A window is a workbench window with a bridge that has a token.
type window struct {
	*page
	site *workbenchSite
	name string
}

// settings disable account prompts and network access.
const settings = `{"chat.agentHost.allowSignedOutWhenUsable": true, "security.workspace.trust.enabled": false, "telemetry.telemetryLevel": "off",
	"workbench.startupEditor": "none", "extensions.autoCheckUpdates": false, "remote.autoForwardPorts": false, "update.mode": "none"}`

// open opens a window at the relay with a client token that change has edited.
func (s *workbenchSite) open(name string, change func(*auth.Client)) *window {
	s.t.Helper()
	return s.openAt(name, s.tap, s.tokenWith(change))
}

// openAt opens a window whose bridge connects to a tap.
func (s *workbenchSite) openAt(name string, tap *stack.Tap, token string) *window {
	t := s.t
	t.Helper()
	node, err := exec.LookPath(cmp.Or(os.Getenv(workbenchNodeVariable), "node"))
	must(t, err)
	dir := s.file("server-" + name)
	must(t, os.MkdirAll(filepath.Join(dir, "data", "User"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "data", "User", "settings.json"), []byte(settings), 0o600))
	s.servers++
	address := net.JoinHostPort(s.address, fmt.Sprint(9000+s.servers))
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	bridge, bridgePort, err := net.SplitHostPort(strings.TrimPrefix(tap.URL(), "ws://"))
	must(t, err)
	bench := &procs.Bench{Programs: filepath.Dir(node), Dir: s.bench.Dir, Env: []string{"HOME=" + dir}}
	server := bench.Process("", "server-"+name, filepath.Base(node), os.Getenv(workbenchVariable),
		"--host", s.address, "--port", port, "--without-connection-token", "--accept-server-license-terms", "--disable-telemetry",
		"--server-data-dir", dir, "--default-folder", s.folder,
		"--agent-host-bridge-host", bridge, "--agent-host-bridge-port", bridgePort, "--agent-host-bridge-connection-token", token)
	t.Cleanup(bench.Kill)
	must(t, server.Launch(t.Context(), func() error {
		response, err := http.Get("http://" + address)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			err = errors.New(response.Status)
		}
		return errors.Join(err, response.Body.Close())
	}))
	// The workbench's own errors do not count. Only this machine is reachable.
	ctx, end, err := startBrowser(browsers, map[string]any{"host-resolver-rules": "MAP * ~NOTFOUND, EXCLUDE " + s.address}, chromedp.WithErrorf(t.Logf))
	if err != nil {
		noBrowser(t, err)
	}
	t.Cleanup(end)
	w := &window{page: &page{t: t, ctx: ctx}, site: s, name: name}
	w.do(chromedp.EmulateViewport(1400, 900), chromedp.Navigate("http://"+address+"/"))
	w.await(prompt)
	return w
}

// Elements of a window.
const (
	prompt   = ".interactive-session .interactive-input-part .monaco-editor .view-lines"
	sessions = ".agent-sessions-viewer .monaco-list-row"
)

// ask enters a prompt in the open session, and waits until its answer contains want.
func (w *window) ask(text, want string) {
	w.t.Helper()
	w.enterPrompt(text)
	w.answered(text, want)
}

// enterPrompt enters a prompt and waits until the chat shows it. It first waits for the
// end of the turn before: during a turn, the window sends a prompt as steering, which the
// mock agent drops, and the chat shows it no longer.
func (w *window) enterPrompt(text string) {
	w.t.Helper()
	w.until("the end of the turn before "+text, 2*patience, func() bool {
		return eval[bool](w.page, fmt.Sprintf("((row) => !row || !!row.querySelector('.interactive-response') && !row.querySelector('.chat-response-loading'))("+newest+")", js(".interactive-request, .interactive-response")))
	})
	before := w.last()
	w.hit(prompt, "true")
	w.do(inserted(text))
	w.holds(text+" in the input", fmt.Sprintf("document.querySelector(%s).textContent.replaceAll('\u00a0', ' ') === %s", js(prompt), js(text)))
	w.do(chromedp.KeyEvent(kb.Enter))
	w.until(text+" in the chat", patience, func() bool { return w.last() != before && strings.HasPrefix(w.last(), text) })
}

// stays checks that a condition holds throughout a time.
func (w *window) stays(what string, during time.Duration, condition string) {
	w.t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if !eval[bool](w.page, condition) {
			w.save("failed")
			w.t.Fatalf("%s has changed", what)
		}
	}
}

// newest finds the chat's newest prompt or answer: the list keeps rows in any order.
const newest = "[...document.querySelectorAll('.interactive-session .monaco-list-row')].filter((r) => r.querySelector(%s)).sort((a, b) => a.dataset.index - b.dataset.index).at(-1)"

// last returns the newest prompt's text.
func (w *window) last() string {
	w.t.Helper()
	return eval[string](w.page, fmt.Sprintf("("+newest+")?.querySelector('.value')?.innerText.trim() ?? ''", js(".interactive-request")))
}

// answered waits until the last prompt's answer contains want.
func (w *window) answered(text, want string) {
	w.t.Helper()
	answer := fmt.Sprintf("(("+newest+")?.innerText ?? '').includes(%s)", js(".interactive-response"), js(want))
	w.until(want+" in the answer to "+text, 2*patience, func() bool {
		return strings.HasPrefix(w.last(), text) && eval[bool](w.page, answer)
	})
	w.save("workbench-" + w.name)
}

// run runs a command from the command palette.
func (w *window) run(command string) {
	w.t.Helper()
	w.do(chromedp.KeyEvent(kb.F1))
	w.await(".quick-input-widget input")
	w.do(inserted(command))
	w.holds(command, fmt.Sprintf("document.querySelector('.quick-input-list .monaco-list-row.focused').getAttribute('aria-label').includes(%s)", js(command)))
	w.do(chromedp.KeyEvent(kb.Enter))
}

// hit clicks the first element that satisfies a condition on e, once it exists.
func (w *window) hit(selector, condition string) {
	w.t.Helper()
	w.until("a click on "+selector+" with "+condition, 2*patience, func() bool { return w.tryHit(selector, condition) })
}

// tryHit is hit for an optional element.
func (w *window) tryHit(selector, condition string) bool {
	w.t.Helper()
	at := eval[*struct{ X, Y float64 }](w.page, fmt.Sprintf(looks, fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll(%s)].find((e) => e.checkVisibility() && (%s));
		const now = e && e.getBoundingClientRect(), rests = now && before && now.x === before.x && now.y === before.y;
		before = now;
		return rests && { x: now.x + Math.min(now.width / 2, 60), y: now.y + now.height / 2 };
	})()`, js(selector), condition), "found"), chromedp.EvalAwaitPromise)
	if at != nil {
		w.do(chromedp.MouseClickXY(at.X, at.Y))
	}
	return at != nil
}

// begin chooses the host's agent for a new session. The window lists the agent once it is
// connected to the host.
func (w *window) begin() {
	w.t.Helper()
	w.until("Mock Agent in the list", 2*patience, func() bool {
		w.do(chromedp.KeyEvent(kb.Escape))
		w.hit(".interactive-session .action-label", "e.textContent.trim() === 'Local'")
		return w.tryHit(".action-widget .monaco-list-row", "e.textContent.includes('Mock Agent')")
	})
	w.holds("the agent's model", "[...document.querySelectorAll('.model-picker-name')].some((e) => e.textContent.includes('Mock Model'))")
}

// choose opens a session from the list.
func (w *window) choose(title string) {
	w.t.Helper()
	w.run("Show Agent Sessions Sidebar")
	w.hit(sessions, "e.textContent.includes("+js(title)+")")
	w.until("the session "+title+" to open", patience, func() bool { return w.last() != "" })
}

// allow approves the agent's request.
func (w *window) allow() {
	w.t.Helper()
	w.hit(".interactive-session .monaco-button", "e.textContent.startsWith('Allow')")
}

// sent counts the windows' messages with this method or action type.
func (s *workbenchSite) sent(kind string) (n int) {
	for _, c := range s.tap.Conns() {
		for _, message := range c.ToHost() {
			var m struct {
				Method string
				Params struct{ Action struct{ Type string } }
			}
			if bytes.Contains(message, []byte(kind)) && json.Unmarshal(message, &m) == nil && (m.Method == kind || m.Params.Action.Type == kind) {
				n++
			}
		}
	}
	return n
}

// A deed is a kind of message from a window, with its outcome.
type deed struct {
	kind    string // method or action type
	refused string // "": not
}

// deeds counts messages and refusals by deed, on all connections of the tap except the first
// ones, whose number is after.
func (s *workbenchSite) deeds(after int) map[deed]int {
	s.t.Helper()
	deeds := map[deed]int{}
	for _, c := range s.tap.Conns()[after:] {
		methods := map[string]string{} // by id
		for _, message := range c.ToHost() {
			var m struct {
				ID     json.RawMessage
				Method string
				Params struct{ Action struct{ Type string } }
			}
			if json.Unmarshal(message, &m) != nil || m.Method == "" {
				continue
			}
			kind := cmp.Or(m.Params.Action.Type, m.Method)
			methods[string(m.ID)] = kind
			deeds[deed{kind: kind}]++
		}
		for _, message := range c.ToClient() {
			var m struct {
				ID     json.RawMessage
				Method string
				Error  *struct{ Message string }
				Params struct {
					Action          struct{ Type string }
					RejectionReason string
				}
			}
			if json.Unmarshal(message, &m) != nil {
				continue
			}
			switch {
			case m.Params.RejectionReason != "":
				deeds[deed{m.Params.Action.Type, m.Params.RejectionReason}]++
			case m.Error != nil && m.Method == "":
				deeds[deed{methods[string(m.ID)], m.Error.Message}]++
			}
		}
	}
	return deeds
}

// takesItsOwn checks that none of a window's own actions are rejected, except those that
// its user has sent. It logs all deeds.
func (s *workbenchSite) takesItsOwn(name string, after int, users ...string) {
	s.t.Helper()
	deeds := s.deeds(after)
	list := slices.SortedFunc(maps.Keys(deeds), func(a, b deed) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.refused, b.refused)) })
	for _, d := range list {
		s.t.Logf("%s: %d times %s %s", name, deeds[d], d.kind, d.refused)
		if d.refused != "" && strings.Contains(d.kind, "/") && !slices.Contains(users, d.kind) {
			s.t.Errorf("%s: the action %s is rejected: %s; want it accepted", name, d.kind, d.refused)
		}
	}
}

// made returns the session in which a window has sent its last prompt.
func (s *workbenchSite) made() (session string) { return madeOn(s.tap) }

// madeOn returns the session for which a window at a tap has last set the active client, as
// windows do before a prompt.
func madeOn(tap *stack.Tap) (session string) {
	for _, c := range tap.Conns() {
		for _, message := range c.ToHost() {
			var m struct {
				Params struct {
					Channel string
					Action  struct{ Type string }
				}
			}
			if json.Unmarshal(message, &m) == nil && m.Params.Action.Type == "session/activeClientSet" {
				session = m.Params.Channel
			}
		}
	}
	return session
}

// atLevel returns a token change that sets the level.
func atLevel(level auth.Access) func(*auth.Client) {
	return func(c *auth.Client) { c.Access = level }
}

// repeated counts the windows' actions of a type that equal an earlier one.
func (s *workbenchSite) repeated(kind string) (n int) {
	seen := map[string]bool{}
	for _, c := range s.tap.Conns() {
		for _, message := range c.ToHost() {
			var m struct {
				Params struct {
					Channel string
					Action  json.RawMessage
				}
			}
			if !bytes.Contains(message, []byte(kind)) || json.Unmarshal(message, &m) != nil || !bytes.HasPrefix(m.Params.Action, []byte(`{"type":"`+kind+`"`)) {
				continue
			}
			key := m.Params.Channel + string(m.Params.Action)
			if seen[key] {
				n++
			}
			seen[key] = true
		}
	}
	return n
}

// quietTime is how long quiet watches. A window that repeats rejected entries sends five a
// second.
const quietTime = 20 * time.Second

// quiet checks that windows repeat few entries as an active client during meanwhile and
// for a time after it. A window repeats an entry with each prompt, and up to seven while
// it starts slowly and registers its tools.
func (s *workbenchSite) quiet(w *window, meanwhile func()) {
	s.t.Helper()
	const entered, most = "session/activeClientSet", 20
	before := s.repeated(entered)
	meanwhile()
	began := time.Now()
	w.until("a quiet time", patience, func() bool { return time.Since(began) > quietTime || s.repeated(entered)-before > most })
	if n := s.repeated(entered) - before; n > most {
		s.t.Errorf("%s was repeated %d times; want at most %d", entered, n, most)
	}
}

// ready begins a session in an unrestricted window and returns its title.
func (s *workbenchSite) ready() (owner *window, title string) {
	s.t.Helper()
	title = fmt.Sprint("hi ", rand.Uint32())
	owner = s.open("operate", atLevel(auth.AccessWrite))
	owner.begin()
	owner.ask(title, "You said: "+title)
	return owner, title
}

// TestWorkbenchOperates uses VS Code's workbench through the relay: prompts, tools and
// approvals, with a host-agent killed during a turn and a relay restart.
func TestWorkbenchOperates(t *testing.T) {
	s := startWorkbenchSite(t)
	w, _ := s.ready()
	s.quiet(w, func() {
		w.ask("hello", saidHello)
		w.ask("tool", saidTool)
		w.enterPrompt("permission")
		w.allow()
		w.answered("permission", allowed)
	})
	w.name = "agent-killed"
	w.enterPrompt("stream 100 100 8")
	w.answered("stream 100 100 8", "3 ")
	s.agent.Kill()
	s.startHostAgent()
	w.answered("stream 100 100 8", "99 xxxxx")
	w.ask("hello", saidHello)
	w.name = "relay-restarted"
	must(t, s.relay.End(syscall.SIGTERM))
	s.startRelay()
	s.startedAgain()
	w.ask("tool", saidTool)
}

// TestWorkbenchBelowOperate checks that VS Code's workbench can use each lower level,
// does not repeat refused requests, and keeps typed text. Its own messages are accepted.
func TestWorkbenchBelowOperate(t *testing.T) {
	s := startWorkbenchSite(t)
	_, title := s.ready()
	conns := len(s.tap.Conns())
	talks := s.open("talk", atLevel(auth.AccessTalk))
	talks.choose(title)
	s.quiet(talks, func() {
		talks.ask("tool", saidTool)
		talks.ask("hello", saidHello)
	})
	approves := s.open("approve", atLevel(auth.AccessApprove))
	approves.choose(title)
	s.quiet(approves, func() {
		approves.enterPrompt("permission")
		approves.allow()
		approves.answered("permission", allowed)
	})
	looks := s.open("look", atLevel(auth.AccessRead))
	looks.choose(title)
	looks.answered("permission", allowed)
	s.looksOnly(looks)
	// When a different window has decided, a window repeats that decision once.
	s.takesItsOwn("below operate", conns, "chat/turnStarted", "chat/toolCallConfirmed")
}

// looksOnly types into a window with the level look: its text stays, and its prompt is
// refused.
func (s *workbenchSite) looksOnly(w *window) {
	s.t.Helper()
	typed := fmt.Sprintf("document.querySelector(%s).textContent === 'hello'", js(prompt))
	s.quiet(w, func() {
		drafts := s.sent("chat/draftChanged")
		w.hit(prompt, "true")
		w.do(inserted("hello"))
		w.until("a draft", patience, func() bool { return s.sent("chat/draftChanged") > drafts })
		w.stays("the typed text", time.Second, typed)
		w.do(chromedp.KeyEvent(kb.Enter))
		w.until("a prompt", patience, func() bool { return s.sent("chat/turnStarted") > 0 })
	})
}

// TestWorkbenchOfOneSession uses VS Code's workbench with tokens for a single session, at
// each level. The window's own messages are accepted.
func TestWorkbenchOfOneSession(t *testing.T) {
	s := startWorkbenchSite(t)
	_, title := s.ready()
	session := s.made()
	for _, level := range []auth.Access{auth.AccessWrite, auth.AccessTalk, auth.AccessApprove, auth.AccessRead} {
		conns := len(s.tap.Conns())
		w := s.open("session-"+level.Level(), func(c *auth.Client) { c.Access, c.Channels = level, []string{session} })
		w.choose(title)
		switch level {
		case auth.AccessRead:
			s.looksOnly(w)
		case auth.AccessApprove:
			s.quiet(w, func() {
				w.enterPrompt("permission")
				w.allow()
				w.answered("permission", allowed)
			})
		default:
			s.quiet(w, func() {
				w.ask("tool", saidTool)
				w.ask("hello", saidHello)
			})
		}
		s.takesItsOwn("one session, "+level.Level(), conns, "chat/turnStarted")
	}
}

// TestWorkbenchOpenedWhileTheHostIsOffline opens a window while the host is offline;
// it connects when the host is back.
func TestWorkbenchOpenedWhileTheHostIsOffline(t *testing.T) {
	s := startWorkbenchSite(t)
	must(t, s.agent.End(syscall.SIGTERM))
	w := s.open("offline", atLevel(auth.AccessWrite))
	w.until("initialize", patience, func() bool { return s.sent("initialize") > 0 })
	s.startHostAgent()
	w.begin()
	w.ask("hello", saidHello)
}

// throughConnect starts ahp-connect. It returns a tap between windows and ahp-connect, the
// proxy between ahp-connect and the relay, and a local token.
func (s *workbenchSite) throughConnect() (tap *stack.Tap, network *faultproxy.Proxy, token string) {
	t := s.t
	t.Helper()
	dir, err := procs.BuildConnect(t.Context())
	must(t, err)
	network, err = faultproxy.New("", strings.TrimPrefix(s.url, "http://"))
	must(t, err)
	t.Cleanup(network.Close)
	must(t, os.WriteFile(s.file("client-token"), []byte(s.token(time.Hour)), 0o600))
	state := []string{"--state-dir", s.file("connect"), "--key-file"}
	made, err := exec.CommandContext(t.Context(), filepath.Join(dir, procs.ConnectProgram), append(state, "token", "vscode", "--host", hostName)...).Output()
	must(t, err)
	listen := net.JoinHostPort(s.address, "8486")
	bench := &procs.Bench{Programs: dir, Dir: s.bench.Dir}
	program := bench.Process("", "ahp-connect", procs.ConnectProgram, append(state, "up", "--relay", "http://"+network.Addr(), "--token-file", s.file("client-token"), "--listen", listen)...)
	t.Cleanup(bench.Kill)
	must(t, program.Launch(t.Context(), func() error {
		conn, err := net.Dial("tcp", listen)
		if err != nil {
			return err
		}
		return conn.Close()
	}))
	tap, err = stack.NewTap("ws://" + listen)
	must(t, err)
	t.Cleanup(tap.Close)
	s.tellsOf(tap, "window at ahp-connect")
	return tap, network, strings.TrimSpace(string(made))
}

// TestWorkbenchThroughConnect uses VS Code's workbench behind ahp-connect. A cut network,
// a frozen one and a restarted relay are pauses: the window's only connection stays open.
func TestWorkbenchThroughConnect(t *testing.T) {
	s := startWorkbenchSite(t)
	tap, network, token := s.throughConnect()
	w := s.openAt("ahp-connect", tap, token)
	w.begin()
	w.ask("hello", saidHello)
	w.ask("tool", saidTool)
	w.enterPrompt("permission")
	w.allow()
	w.answered("permission", allowed)
	for name, fault := range map[string]func(){
		"cut":    network.Cut,
		"frozen": network.Freeze,
		"restart": func() {
			must(t, s.relay.End(syscall.SIGTERM))
			s.startRelay()
		},
	} {
		w.name = "ahp-connect-" + name
		w.enterPrompt("stream 100 100 8")
		w.answered("stream 100 100 8", "3 ")
		fault()
		time.Sleep(time.Second)
		must(t, network.Heal())
		w.answered("stream 100 100 8", "99 xxxxx")
		w.ask("hello", saidHello)
	}
	conns := tap.Conns()
	if len(conns) != 1 || conns[0].Ended() {
		t.Errorf("the window has used %d connections, the first ended: %v; want one, open", len(conns), conns[0].Ended())
	}
}
