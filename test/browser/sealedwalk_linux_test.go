//go:build !race

package browser_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/link"
	"ahprelay/test/eavesdrop"
	"ahprelay/test/natssite"
	"ahprelay/test/procs"
	"ahprelay/test/pushsite"
	"ahprelay/test/stack"
)

// walkHost is the host's name in sealedWalk, which the relay knows. Its 16 bytes are a
// piece that the search must find in each place, which shows that the search works.
const walkHost = "host-of-the-walk"

// walkPrompt is a prompt whose text is not in the relay's program. The agent repeats
// it.
const walkPrompt = "a prompt of the walk that nobody else reads"

// A sealedWalk follows a new user's steps with a sealed host, by the commands in the
// documents. Meanwhile the test records everything that an operator can see at the
// relay, which is a separate process.
type sealedWalk struct {
	*sealedSite
	programs   string
	natsListen string
	owner      *page      // the browser with the setup link, on the page that the relay serves
	upstream   *stack.Tap // the connections between host-agent and host
	nats       eavesdrop.Recording
	loopback   *page // the console that ahp-connect serves on loopback
}

// startSealedWalk starts a relay, opens the first owner's browser, and serves the
// console as a static site.
func startSealedWalk(t *testing.T, upstream string) *sealedWalk {
	t.Helper()
	programs, err := procs.Build(t.Context())
	must(t, err)
	connect, err := procs.BuildConnect(t.Context())
	must(t, err)
	w := &sealedWalk{sealedSite: &sealedSite{site: newSite(t)}, programs: connect}
	w.bench.Programs = programs
	w.upstream, err = stack.NewTap(upstream)
	must(t, err)
	t.Cleanup(w.upstream.Close)
	address, err := procs.FreeAddress()
	must(t, err)
	w.natsListen = net.JoinHostPort(address, "4222")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w.console = "http://" + l.Addr().String()
	setup := w.firstRelay("--console-origin", w.console, "--notify-private", "127.0.0.0/8", "--nats-listen", w.natsListen, "--log-level", "debug")
	servesConsole(t, l, w.url)
	w.owner = newPage(t)
	w.owner.do(desktop(), chromedp.Navigate(setup))
	w.owner.click("#form button")
	w.owner.wants("#who", "owner. You may do everything")
	w.keys, err = auth.LoadKeys(w.file("data"))
	must(t, err)
	return w
}

// says runs a program until it ends, and returns its output.
func (w *sealedWalk) says(dir, program string, args ...string) string {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), filepath.Join(dir, program), args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// agentSays runs a subcommand of host-agent against the running host-agent, and returns
// its output.
func (w *sealedWalk) agentSays(args ...string) string {
	w.t.Helper()
	return w.says(w.bench.Programs, procs.AgentProgram, append(args, "--control", w.control.Path)...)
}

// connects runs a command of ahp-connect until it ends, and returns its output.
func (w *sealedWalk) connects(args ...string) string {
	w.t.Helper()
	return w.says(w.programs, procs.ConnectProgram, w.connectFlags(args...)...)
}

func (w *sealedWalk) connectFlags(args ...string) []string {
	return append([]string{"--state-dir", w.file("connect"), "--key-file"}, args...)
}

// within returns the first group that a pattern matches in a program's output.
func (w *sealedWalk) within(output, pattern string) string {
	w.t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(output)
	if found == nil {
		w.t.Fatalf("no text like %s in\n%s", pattern, output)
	}
	return found[1]
}

// joins runs host-agent up --sealed, and the owner approves the host on a page of the
// relay.
func (w *sealedWalk) joins() {
	t := w.t
	t.Helper()
	dir, err := os.MkdirTemp("", "ahp") // short, because a socket's path has a limit
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w.control.Path = filepath.Join(dir, "control.sock")
	agent := w.bench.Process("", "host-agent", procs.AgentProgram, "up", w.url, "--sealed", "--console", w.console+"/", "--upstream", w.upstream.URL(),
		"--no-qr", "--credentials-file", w.file("credential"), "--state-dir", w.file("state"), "--control", w.control.Path)
	must(t, agent.Launch(t.Context(), func() error {
		if !strings.Contains(agent.Log(), "must show the fingerprint") {
			return errors.New("no code")
		}
		return nil
	}))
	t.Cleanup(func() { w.end(agent) })
	w.owner.enter("#code", w.within(agent.Log(), `\n  ([B-Z]{4}-[B-Z]{4})\n`))
	w.owner.click("#lookup button[type=submit]")
	w.owner.wants("#what", w.within(agent.Log(), `must show the fingerprint (\S+)\.`))
	w.owner.enter("#host", walkHost)
	w.owner.click("#decide button[type=submit]")
	w.owner.wants("[data-pair]", "pair this device")
	w.owner.until("the control socket", patience, func() bool {
		_, err := w.control.Devices(t.Context())
		return err == nil
	})
}

// admitted waits until a device shows its words, compares them with the host's words,
// and confirms the device at the host.
func (w *sealedWalk) admitted(words func() string) {
	w.t.Helper()
	w.owner.until("a device that waits with the words on its screen", patience, func() bool {
		list := w.agentSays("devices")
		waits := regexp.MustCompile(`waits: ([a-z ]+) \(.* host-agent devices (--confirm=\S+)`).FindStringSubmatch(list)
		if waits == nil || !strings.Contains(words(), waits[1]) {
			return false
		}
		w.agentSays("devices", waits[2])
		return true
	})
}

// runs starts a command of ahp-connect and returns its process, which may end by
// itself.
func (w *sealedWalk) runs(name string, args ...string) *procs.Process {
	w.t.Helper()
	p := (&procs.Bench{Programs: w.programs, Dir: w.bench.Dir}).Process("", name, procs.ConnectProgram, w.connectFlags(args...)...)
	must(w.t, p.Start())
	w.t.Cleanup(p.Kill)
	return p
}

// pairsConnect signs ahp-connect in at the relay, pairs it with the host by a code, and
// starts it.
func (w *sealedWalk) pairsConnect() {
	t := w.t
	t.Helper()
	login := w.runs("login", "login", w.url, "--no-qr")
	shows := func(p *procs.Process, text string) {
		t.Helper()
		w.owner.until(text+" in the terminal", patience, func() bool { return strings.Contains(p.Log(), text) })
	}
	shows(login, "must show the fingerprint")
	w.owner.do(chromedp.Navigate(w.url + "/device"))
	w.owner.wants("#who", "owner")
	w.owner.click("#to-add-device")
	w.owner.enter("#code-device", w.within(login.Log(), `\n  ([B-Z]{4}-[B-Z]{4})\n`))
	w.owner.click("#lookup-device button[type=submit]")
	w.owner.wants("#what", w.within(login.Log(), `must show the fingerprint (\S+)\.`))
	w.owner.click("#level [value=own]")
	w.owner.click("#decide button[type=submit]")
	shows(login, "Signed in at")

	code := w.within(w.agentSays("devices", "--pair", "--no-qr"), `and type the code\n\n  (\S+)`)
	pair := w.runs("pair", "pair", walkHost, code)
	w.admitted(pair.Log)
	shows(pair, "Paired with "+walkHost)

	address, err := procs.FreeAddress()
	must(t, err)
	up := w.runs("ahp-connect", "up", "--listen", net.JoinHostPort(address, "8486"))
	shows(up, address)
	w.loopback = newPage(t)
	w.loopback.do(desktop(), chromedp.Navigate(strings.TrimSpace(w.connects("open", walkHost, "--print"))))
	w.loopback.wants("#status-text", "Live")
}

// listens records everything that is published in the tenant's NATS account, which
// operators can read. It returns a function that ends the recording.
func (w *sealedWalk) listens() (end func()) {
	c := natssite.DialRelay(w.t, broker.RelayDialConfig{URL: "nats://" + w.natsListen, Keys: w.keys, Instance: link.NewInstance(), Tenant: auth.DefaultTenant})
	in := make(chan *nats.Msg, 10000)
	cancel, err := c.Subscribe(auth.TenantSubjects(auth.DefaultTenant), in)
	must(w.t, err)
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case m := <-in:
				_, _ = fmt.Fprintf(&w.nats, "%s %s %v %s\n", m.Subject, m.Reply, m.Header, m.Data)
			case <-stop:
				return
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); close(stop); running.Wait() })
}

// findsNothing collects pieces of all messages between host-agent and host. It fails
// the test if the operator can see such a piece anywhere.
func (w *sealedWalk) findsNothing(session string, before eavesdrop.Dump) {
	t := w.t
	t.Helper()
	var messages [][]byte
	for _, conn := range w.upstream.Conns() {
		messages = slices.Concat(messages, conn.ToHost(), conn.ToClient())
	}
	secrets := slices.DeleteFunc(eavesdrop.SecretsOf(messages), func(s string) bool { return strings.HasPrefix(s, "2026-") }) // times also occur in the relay's own files
	pieces := eavesdrop.PiecesOf(secrets)
	program, err := os.ReadFile(filepath.Join(w.bench.Programs, procs.RelayProgram)) // the relay's program also contains the console
	must(t, err)
	for known := range append(before, program).Finds(pieces) {
		delete(pieces, known)
	}
	own := filepath.Join(os.TempDir(), "Test") // begins the path of the relay's data
	maps.DeleteFunc(pieces, func(p eavesdrop.Piece, _ bool) bool { return strings.Contains(string(p[:]), own) })
	for known := range eavesdrop.PiecesOf([]string{walkPrompt, session}) {
		if !pieces[known] {
			t.Fatalf("the relay had the piece %q before the walk; want only secrets", known)
		}
	}
	log, err := os.ReadFile(w.file("relay.log"))
	must(t, err)
	host := eavesdrop.PiecesOf([]string{walkHost})
	for place, data := range map[string]eavesdrop.Dump{
		"NATS":   {w.nats.Bytes()},
		"memory": eavesdrop.DumpMemory(t, w.relay.Pid()),
		"files":  {eavesdrop.FilesIn(t, w.file("data"))},
		"log":    {log},
	} {
		if len(data.Finds(host)) == 0 {
			t.Errorf("the %s, %d bytes, lacks the host's name; want it, so that the search works", place, data.Size())
		}
		list := data.Finds(pieces)
		t.Logf("%s: %d bytes, %d of %d pieces", place, data.Size(), len(list), len(pieces))
		if len(list) > 0 {
			t.Errorf("%s contains plain text: %q; want none", place, eavesdrop.Some(list))
		}
	}
}

// phone opens the static site by the link in the host's QR code, signs in with a token,
// and turns notifications on.
func (w *sealedWalk) phone(service *pushsite.Service) *lockScreen {
	w.t.Helper()
	l := &lockScreen{page: newBrowser(w.t, nil)}
	ids := l.allowNotifications(w.console)
	l.push = func(message string) { l.do(pushed(w.console, ids(), message)) }
	address := w.within(w.agentSays("devices", "--pair", "--no-qr"), `In a browser, open\n\n  (\S+)`)
	l.do(phone(), chromedp.Navigate(address))
	l.giveToken(strings.TrimSpace(w.says(w.bench.Programs, procs.RelayProgram, "token", "client", "--data-dir", w.file("data"), "--host", walkHost, "--subject", "ada")))
	l.wants("#pair", "With "+walkHost)
	l.click("#pair button[type=submit]")
	w.admitted(func() string { return l.text("#own-words") })
	l.wants("#status-text", "Live")
	l.notifiesBy(service)
	return l
}

// TestSealedHostByTheDocuments follows a new user's steps from the relay's first start
// to a sealed host in use. It pairs ahp-connect by a code, and opens the console on
// loopback and on a phone from the static site. It answers from the phone's lock screen
// and opens a link for two viewers. The relay must not contain 16 bytes from the host's
// messages.
func TestSealedHostByTheDocuments(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.host = s.addHost(hostName)
	w := startSealedWalk(t, "ws://"+s.host.address)
	w.walks(func() string {
		w.loopback.begin()
		return eval[string](w.loopback, "new URLSearchParams(location.hash.slice(1)).get('session')")
	})
}

// TestWorkbenchAtASealedHost follows the same steps at VS Code's host. VS Code's
// workbench begins the session, behind ahp-connect.
func TestWorkbenchAtASealedHost(t *testing.T) {
	upstream := os.Getenv(upstreamVariable)
	if os.Getenv(workbenchVariable) == "" || upstream == "" {
		t.Skipf("%s names no workbench, or %s no host: VS Code is not driven (make interop)", workbenchVariable, upstreamVariable)
	}
	w := startSealedWalk(t, upstream)
	w.walks(func() string {
		listen := eval[string](w.loopback, "location.host")
		tap, err := stack.NewTap("ws://" + listen)
		must(t, err)
		t.Cleanup(tap.Close)
		folder, err := os.MkdirTemp("", "folder-of-the-agent")
		must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(folder) })
		address, err := procs.FreeAddress()
		must(t, err)
		windows := &workbenchSite{site: w.site, address: address, folder: folder, tap: tap}
		window := windows.openAt("sealed", tap, strings.TrimSpace(w.connects("token", "vscode", "--host", walkHost)))
		window.begin()
		window.ask("hello", saidHello)
		window.ask("tool", saidTool)
		return windows.made()
	})
}

// walks follows all steps. begin starts the session and returns its URI.
func (w *sealedWalk) walks(begin func() (session string)) {
	t := w.t
	t.Helper()
	w.joins()
	end := w.listens()
	defer end()
	before := eavesdrop.DumpMemory(t, w.relay.Pid()) // the relay's own texts may also occur in messages
	w.pairsConnect()
	session := begin()
	w.loopback.openSession(session)
	w.loopback.say(walkPrompt)
	w.loopback.wants(lastTurn+" .parts", "You said: "+walkPrompt)

	service := pushsite.New(t)
	l := w.phone(service)
	l.openSession(session)
	l.wants("#turns", walkPrompt)
	w.loopback.say("permission")
	asked := ""
	for !strings.Contains(asked, `\"answers\":[{`) { // the end of the turn before may arrive late
		asked = string(service.Next().Text)
	}
	l.delivers(asked, "the notification", func(shown string) bool { return strings.Contains(shown, `"offered":`) })
	l.press("0", "")
	w.loopback.wants(lastTurn+" .parts", allowed)

	share := w.within(w.agentSays("share", session, "--no-qr", "--relay", w.url, "--credentials-file", w.file("credential")), `(http\S+)`)
	if !strings.HasPrefix(share, w.console+"/#") {
		t.Fatalf("the link is %s; want one to the console at %s", share, w.console)
	}
	viewers := []*page{newPage(t), newPage(t)}
	for _, v := range viewers {
		v.do(phone(), chromedp.Navigate(share))
		v.wants("#turns", allowed)
	}
	w.loopback.say("hello")
	for _, v := range viewers {
		v.wants(lastTurn+" .parts", saidHello)
	}
	end()
	w.findsNothing(session, before)
}
