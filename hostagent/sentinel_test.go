package hostagent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/signal"
	"ahprelay/test/locked"
)

// testSentinelInput returns a sentinel's input as a line: the host laptop, with a token for this
// relay.
func testSentinelInput(t *testing.T, relay string) string {
	t.Helper()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(sentinelInput{Relays: []string{relay}, Token: token, Instance: "agent1"})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

// TestSentinelDoesNothingAfterFarewell gives a sentinel a farewell, or input without a usable line.
// The sentinel must send no request to the relay.
func TestSentinelDoesNothingAfterFarewell(t *testing.T) {
	relay := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the sentinel has sent a request; want none")
	}))
	defer relay.Close()
	w := testSentinelInput(t, relay.URL)
	for _, test := range []struct{ name, pipe, want string }{
		{"no input", "", ""},
		{"farewell", w + `{"farewell":true}` + "\n" + w, ""},
		{"farewell at once", `{"farewell":true}` + "\n", ""},
		{"started by hand", "hello\n", `started by "host-agent run" only`},
		{"no end", strings.Repeat("x", maxSentinelInput+1), "too long"},
		{"half a line", w[:20], "malformed standard input"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := RunSentinel(strings.NewReader(test.pipe), slog.New(slog.DiscardHandler))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("RunSentinel = %v; want %q", err, test.want)
			}
		})
	}
}

// TestSentinelGivesUp gives a sentinel a relay that refuses, and then a relay that cannot be
// reached. The sentinel must end at once with the refusing relay, and after sentinelTime with the
// other relay.
func TestSentinelGivesUp(t *testing.T) {
	var asked int
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer relay.Close()
	log := slog.New(slog.DiscardHandler)
	if err := RunSentinel(strings.NewReader(testSentinelInput(t, relay.URL)), log); err == nil || !strings.Contains(err.Error(), "refuses the enrolment token") {
		t.Errorf("RunSentinel = %v; want the refusal", err)
	}
	if asked != 1 {
		t.Errorf("a relay that refuses was asked %d times; want once", asked)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := RunSentinel(strings.NewReader(testSentinelInput(t, "http://"+l.Addr().String())), log)
		if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "cannot be reached") || took < sentinelTime-2*askAgain || took > sentinelTime {
			t.Errorf("RunSentinel = %v after %v; want it to give up after %v", err, took, sentinelTime)
		}
	})
}

// awaitText waits until a text is written a number of times, and returns all that is written.
func awaitText(t *testing.T, b *locked.Buffer, want string, times int) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if text := b.String(); strings.Count(text, want) >= times {
			return text
		}
	}
	t.Fatalf("the text does not contain %q %d times within a minute; want it to", want, times)
	return ""
}

// runSentinel runs the supervision of a sentinel with the program child(kind). Stop ends the
// supervision. Said contains the log and the program's output.
func runSentinel(t *testing.T, kind string, now func() (sentinelInput, error)) (s *sentinel, said *locked.Buffer, stop func()) {
	t.Helper()
	said = &locked.Buffer{}
	s = newSentinel(SentinelCommand{Command: child(kind), Stderr: said}, slog.New(slog.NewTextHandler(said, nil)), now)
	s.again = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	return s, said, stop
}

// TestSentinelGetsItsInput fails unless a sentinel gets its input, each update and a farewell on
// its standard input, and no secret in its arguments or environment.
func TestSentinelGetsItsInput(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "s3cret")
	t.Setenv("https_proxy", "http://proxy:3128")
	tokens := make(chan string, 1)
	tokens <- "first"
	s, said, stop := runSentinel(t, "tell", func() (sentinelInput, error) {
		select {
		case token := <-tokens:
			return sentinelInput{Token: token, Instance: "agent1"}, nil
		default:
			return sentinelInput{}, os.ErrNotExist
		}
	})
	text := awaitText(t, said, `input {"token":"first","instance":"agent1"}`, 1)
	if strings.Contains(text, "s3cret") || !strings.Contains(text, "environment https_proxy=http://proxy:3128") {
		t.Errorf("sentinel has\n%s\nwant the proxy, and no secret", text)
	}
	if arguments, _, _ := strings.Cut(text, "\n"); strings.Contains(arguments, "first") || !strings.Contains(arguments, "child=tell") {
		t.Errorf("%s; want no token among them", arguments)
	}
	tokens <- "second"
	signal.Send(s.news)
	awaitText(t, said, `input {"token":"second","instance":"agent1"}`, 1)
	signal.Send(s.news) // the input cannot be read now, so the sentinel keeps the previous
	stop()
	text = awaitText(t, said, `input {"farewell":true}`, 1)
	if n := strings.Count(text, "input {"); n != 3 {
		t.Errorf("%d lines; want 3:\n%s", n, text)
	}
}

// TestSentinelIsKept runs a sentinel that ends at once, which must be started again, and a sentinel
// that does not end, which must be killed at the stop.
func TestSentinelIsKept(t *testing.T) {
	now := func() (sentinelInput, error) { return sentinelInput{Instance: "agent1"}, nil }
	_, said, stop := runSentinel(t, "crash", now)
	awaitText(t, said, "sentinel ended: exit status 3", 3)
	stop()
	_, _, stop = runSentinel(t, "deaf", now)
	stop() // without the kill, the test would hang here
	s := newSentinel(SentinelCommand{Command: []string{"/no/such/program"}}, slog.New(slog.NewTextHandler(said, nil)), now)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx) })
	awaitText(t, said, "no such file", 1)
	cancel()
	running.Wait()
}

// TestSentinelWithoutInputDelaysNothing cannot read the input, such as a token that is being
// replaced, when the sentinel starts. The host-agent must not wait for it, and the sentinel must
// get the input later.
func TestSentinelWithoutInputDelaysNothing(t *testing.T) {
	var readable atomic.Bool
	s, said, _ := runSentinel(t, "tell", func() (sentinelInput, error) {
		if !readable.Load() {
			return sentinelInput{}, os.ErrNotExist
		}
		return sentinelInput{Instance: "agent1"}, nil
	})
	select {
	case <-s.ready:
	case <-time.After(10 * time.Second):
		t.Error("the host-agent waits for a sentinel whose input is unreadable; want it to go on")
	}
	readable.Store(true)
	awaitText(t, said, `input {"instance":"agent1"}`, 1)
}
