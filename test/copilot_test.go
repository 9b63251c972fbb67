package test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/hostagent"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// copilotStart is the longest time for a start of Copilot's host. At its first start,
// the host unpacks itself.
const copilotStart = 2 * time.Minute

// copilot is GitHub Copilot CLI's AHP host, in a separate process with its own home
// directory.
type copilot struct {
	*testing.T
	program, dir, home, address string
	cmd                         *exec.Cmd
	ended                       chan struct{}
}

// newCopilot starts Copilot's host. It skips the test if AHP_COPILOT_DIR is not set.
func newCopilot(t *testing.T) *copilot {
	t.Helper()
	dir := os.Getenv("AHP_COPILOT_DIR")
	if dir == "" {
		t.Skip("AHP_COPILOT_DIR does not say where GitHub Copilot CLI is: make interop does")
	}
	programs, err := filepath.Glob(filepath.Join(dir, "node_modules", "@github", "copilot-*", "copilot"))
	if err != nil || len(programs) == 0 {
		t.Skipf("GitHub Copilot CLI is not in %s, so its host is not tested: test/install-copilot.sh installs it", dir)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := &copilot{T: t, program: programs[0], dir: dir, home: t.TempDir(), address: l.Addr().String()}
	if err := os.MkdirAll(filepath.Join(dir, "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
	// All home directories share the unpacked files.
	if err := os.Symlink(filepath.Join(dir, "cache"), filepath.Join(h.home, ".cache")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.stop)
	_ = l.Close() // frees the port for the host
	h.start()
	return h
}

// start starts the host's process, and returns when the host listens.
func (h *copilot) start() {
	h.Helper()
	h.cmd = exec.Command(h.program, "--experimental", "--ahp-host", "--ahp-host-token", "s3cret", "--listen", h.address)
	h.cmd.Dir = h.home
	h.cmd.Env = []string{"HOME=" + h.home, "PATH=" + os.Getenv("PATH"), "GH_TOKEN=gho_x", "COPILOT_CLI_ENABLED_FEATURE_FLAGS=AHP_CLIENT", "COPILOT_AUTO_UPDATE=false"}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		h.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		h.Fatal(err)
	}
	listens := make(chan struct{})
	h.ended = make(chan struct{})
	go func() {
		defer close(h.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.Contains(lines.Text(), "AHP 1.0 endpoint") {
				close(listens)
			}
		}
		_ = h.cmd.Wait()
	}()
	select {
	case <-listens:
	case <-h.ended:
		h.Fatal("Copilot's host has ended before it listens; want it running")
	case <-time.After(copilotStart):
		h.Fatalf("Copilot's host does not listen after %v; want it earlier", copilotStart)
	}
}

// stop kills the host, and returns when its process has ended.
func (h *copilot) stop() {
	if h.ended != nil {
		_ = h.cmd.Process.Kill()
		<-h.ended
	}
}

func (h *copilot) url() string { return "ws://" + h.address + "/?tkn=s3cret" }

// challenge matches a value that the host makes anew on each connection.
var challenge = regexp.MustCompile(`"challenge":"[0-9a-f]+"`)

// said holds the host's responses, by the name of the connection.
type said map[string][]string

// talk opens a connection for each list of requests. It sends the requests and waits
// for each response. It returns the responses and the open clients.
func talk(t *testing.T, dial dialer, conversations map[string][]string) (answers said, clients map[string]*refclient.Client) {
	t.Helper()
	answers, clients = said{}, map[string]*refclient.Client{}
	for name, requests := range conversations {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		c, err := dial(ctx, refclient.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Abort() })
		clients[name] = c
		for i, request := range requests {
			method, params, _ := strings.Cut(request, " ")
			text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, i+1, method, params)
			if err := c.SendRaw([]byte(text)); err != nil {
				t.Fatalf("sending a request as %s: %v; want no error", name, err)
			}
			answer, err := c.WaitFor(ctx, func(frame []byte) bool {
				var m message
				return json.Unmarshal(frame, &m) == nil && m.Method == "" && string(m.ID) == fmt.Sprint(i+1)
			})
			if err != nil {
				t.Fatalf("%s: no answer to %s: %v", name, request, err)
			}
			answers[name] = append(answers[name], challenge.ReplaceAllString(string(answer), `"challenge":""`))
		}
	}
	return answers, clients
}

// TestCopilotHost sends the same requests to GitHub Copilot CLI's host directly and
// through the relay, and compares the responses. Then the host ends and restarts.
// Without a sign-in, the host answers only requests about versions, errors, presence
// and reconnect. No other real host in these tests has an AHP version after 0.9.
func TestCopilotHost(t *testing.T) {
	host := newCopilot(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startStack(t, stack.Config{Upstream: "ws://" + host.address, Agent: hostagent.Config{Upstream: hostagent.Upstream{TokenFile: token}}})
	hello := func(version, clientID string) string {
		return fmt.Sprintf(`initialize {"channel":"ahp-root://","protocolVersions":[%q],"clientId":%q,"initialSubscriptions":["ahp-root://"]}`, version, clientID)
	}
	conversations := func(run string) map[string][]string {
		list := map[string][]string{
			"errors": {
				hello("1.0.0", "errors-"+run), `ping {"channel":"ahp-root://"}`, `listSessions {"channel":"ahp-root://"}`,
				`resourceRead {"channel":"ahp-root://","uri":"file:///etc/hostname"}`, `createSession {"channel":"ahp-session:/a"}`,
				`subscribe {"channel":"ahp-session:/none"}`, `noSuchMethod {"channel":"ahp-root://"}`,
				`authenticate {"channel":"ahp-root://","resource":"https://api.github.com","token":"gho_x"}`,
			},
			"ping first": {`ping {"channel":"ahp-root://"}`},
			"stranger":   {`reconnect {"channel":"ahp-root://","clientId":"stranger-` + run + `","lastSeenServerSeq":0,"subscriptions":["ahp-root://"]}`},
		}
		for _, version := range []string{"1.1.0", "1.5.0", "1.0.0", "0.9.0", "0.10.0", "2.0.0", "x"} {
			list[version] = []string{hello(version, "v"+version+"-"+run)}
		}
		return list
	}
	want, _ := talk(t, direct(host.url()), conversations("direct"))
	got, clients := talk(t, throughRelay(t, s), conversations("relayed"))
	for name := range want {
		if !slices.Equal(got[name], want[name]) {
			t.Errorf("%s: through the relay\n%s\ndirectly\n%s\nwant the same", name, strings.Join(got[name], "\n"), strings.Join(want[name], "\n"))
		}
	}
	for _, conn := range s.Tap.Conns() { // and clients receive every byte that the host sends
		for name, c := range clients {
			if sent := conn.ToHost(); len(sent) > 0 && strings.Contains(string(sent[0]), fmt.Sprintf("%s-relayed", name)) {
				wantAllOf(t, name, c, conn)
			}
		}
	}
	if errors := strings.Join(got["errors"], "\n"); !strings.Contains(errors, "copilot.encryptionRequired") || !strings.Contains(errors, "copilot-sealed") || strings.Count(errors, "-32007") < 3 {
		t.Errorf("the errors differ from those known of Copilot's host: %s", errors)
	}
	copilotComesBack(t, s, host, clients["1.0.0"])
}

// copilotComesBack drops a client, which then resumes. It ends the host: the relay
// closes one client, and holds another client's reconnect until the host runs again.
func copilotComesBack(t *testing.T, s *stack.Stack, host *copilot, client *refclient.Client) {
	t.Helper()
	dial := throughRelay(t, s)
	again := func(requests ...string) said {
		answers, _ := talk(t, dial, map[string][]string{"": requests})
		return answers
	}
	const resume = `reconnect {"channel":"ahp-root://","clientId":"v1.0.0-relayed","lastSeenServerSeq":0,"subscriptions":["ahp-root://"]}`
	_ = client.Abort()
	if answer := again(resume)[""][0]; !strings.Contains(answer, `"type":"replay"`) || !strings.Contains(answer, "copilot.encryptionRequired") {
		t.Errorf("reconnect returns %s; want a replay that demands encryption", answer)
	}
	watching := join(t, dial, "watching", nil)
	host.stop()
	wantClosed(t, watching, ahp.CloseHostOffline, "host offline")
	awaitState(t, s, "offline")
	held := make(chan error, 1)
	late, err := dial(t.Context(), refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = late.Abort() })
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), copilotStart)
		defer cancel()
		_, err := late.Call(ctx, "reconnect", json.RawMessage(strings.TrimPrefix(resume, "reconnect ")))
		held <- err
	}()
	host.start()
	awaitState(t, s, "online")
	var refused *refclient.RPCError
	if err := <-held; !errors.As(err, &refused) || refused.Code != ahp.CodeNotFound { // the new process knows no client
		t.Errorf("reconnect across the host's end: %v; want the host's own %d", err, ahp.CodeNotFound)
	}
	join(t, dial, "after", nil)
}
