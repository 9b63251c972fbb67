//go:build !race

package browser_test

import (
	"errors"
	"fmt"
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

// walkHost is the name of the walk's host, which the relay knows. It has 16 bytes: so each
// place that the tap searches must contain at least one known piece.
const walkHost = "host-of-the-walk"

// walkPrompt is a prompt that the relay's program does not contain. The agent repeats it.
const walkPrompt = "a prompt of the walk that nobody else reads"

// A sealedWalk is what a new person does with a sealed host, with the commands in the
// documents. Meanwhile a tap watches the relay, which is a separate process.
type sealedWalk struct {
	*sealedSite
	programs   string
	natsListen string
	owner      *page      // the browser with the setup link, on the relay's own page
	upstream   *stack.Tap // between host-agent and host
	nats       eavesdrop.Recording
	loopback   *page // the console that ahp-connect serves
}

// startSealedWalk starts a relay, its first owner's browser and the console's static site.
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
	w.owner.wants("#who", "owner, level own")
	w.keys, err = auth.LoadKeys(w.file("data"))
	must(t, err)
	return w
}

// says runs a program to its end, and returns its output.
func (w *sealedWalk) says(dir, program string, args ...string) string {
	w.t.Helper()
	out, err := exec.CommandContext(w.t.Context(), filepath.Join(dir, program), args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// agentSays runs a subcommand of host-agent that talks to the running one.
func (w *sealedWalk) agentSays(args ...string) string {
	w.t.Helper()
	return w.says(w.bench.Programs, procs.AgentProgram, append(args, "--control", w.control.Path)...)
}

// connects runs a command of ahp-connect.
func (w *sealedWalk) connects(args ...string) string {
	w.t.Helper()
	return w.says(w.programs, procs.ConnectProgram, w.connectFlags(args...)...)
}

func (w *sealedWalk) connectFlags(args ...string) []string {
	return append([]string{"--state-dir", w.file("connect"), "--key-file"}, args...)
}

// within returns the part of a program's output that a pattern names.
func (w *sealedWalk) within(output, pattern string) string {
	w.t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(output)
	if found == nil {
		w.t.Fatalf("no %s in\n%s", pattern, output)
	}
	return found[1]
}

// joins joins the host with host-agent up --sealed. The owner approves it on a page of
// the relay.
func (w *sealedWalk) joins() {
	t := w.t
	t.Helper()
	dir, err := os.MkdirTemp("", "ahp") // short enough for a socket's path
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

// admitted compares the words on a device with the host's, and confirms at the host.
func (w *sealedWalk) admitted(words func() string) {
	w.t.Helper()
	w.owner.until("a device that waits with the words on its screen", patience, func() bool {
		list := w.agentSays("devices")
		waits := regexp.MustCompile(`waits: ([a-z ]+) \(.* host-agent devices --confirm (\S+)`).FindStringSubmatch(list)
		if waits == nil || !strings.Contains(words(), waits[1]) {
			return false
		}
		w.agentSays("devices", "--confirm", waits[2])
		return true
	})
}

// runs starts a command of ahp-connect that may end by itself.
func (w *sealedWalk) runs(name string, args ...string) *procs.Process {
	w.t.Helper()
	p := (&procs.Bench{Programs: w.programs, Dir: w.bench.Dir}).Process("", name, procs.ConnectProgram, w.connectFlags(args...)...)
	must(w.t, p.Start())
	w.t.Cleanup(p.Kill)
	return p
}

// pairsConnect signs ahp-connect in, pairs it by the host's code, and starts it.
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

// listens taps everything that is published in the tenant's account, as an operator's tools
// may, and returns a function that ends the tap.
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

// findsNothing looks for pieces of all messages between host-agent and host in all that the
// operator can see.
func (w *sealedWalk) findsNothing(session string, before eavesdrop.Dump) {
	t := w.t
	t.Helper()
	var messages [][]byte
	for _, conn := range w.upstream.Conns() {
		messages = slices.Concat(messages, conn.ToHost(), conn.ToClient())
	}
	secrets := slices.DeleteFunc(eavesdrop.SecretsOf(messages), func(s string) bool { return strings.HasPrefix(s, "2026-") }) // times
	pieces := eavesdrop.PiecesOf(secrets)
	program, err := os.ReadFile(filepath.Join(w.bench.Programs, procs.RelayProgram)) // with the console
	must(t, err)
	for known := range append(before, program).Finds(pieces) {
		delete(pieces, known)
	}
	for known := range eavesdrop.PiecesOf([]string{walkPrompt, session}) {
		if !pieces[known] {
			t.Fatalf("%q is no secret: the relay had it before", known)
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
			t.Errorf("%s: %d bytes, and the host's name is not in them", place, data.Size())
		}
		list := data.Finds(pieces)
		t.Logf("%s: %d bytes, %d of %d pieces", place, data.Size(), len(list), len(pieces))
		if len(list) > 0 {
			t.Errorf("%s: %q", place, eavesdrop.Some(list))
		}
	}
}

// phone opens the static site by the link in the host's QR code, signs in with a token, and
// turns notifications on.
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

// TestSealedHostByTheDocuments walks as a new person from the relay's first start to a sealed host in
// use: ahp-connect paired by the code, the console on loopback, a phone on the static site,
// an answer from its lock screen, and two viewers of a link. No 16 bytes from the host's
// messages are at the relay.
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

// TestWorkbenchAtASealedHost is the same walk at VS Code's host, whose workbench begins the
// session behind ahp-connect.
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

// walks performs the walk. begin starts the session and returns its URI.
func (w *sealedWalk) walks(begin func() (session string)) {
	t := w.t
	t.Helper()
	w.joins()
	end := w.listens()
	defer end()
	before := eavesdrop.DumpMemory(t, w.relay.Pid()) // the relay's own words are also in messages
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
	for !strings.Contains(asked, `\"answers\":[{`) { // the end of the turn before may come late
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
