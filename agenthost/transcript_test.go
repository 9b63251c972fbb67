package agenthost_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
)

var update = flag.Bool("update", false, "rewrite the expectations of the transcripts")

// TestHostFollowsTheTranscripts plays testdata/*.txtar. The part "transcript" is a sequence
// of steps, each followed by the frames that the clients then receive:
//
//	A> {…}     client A, connected by its first step, sends a frame
//	close A    client A hangs up
//	wait 1s    time passes
//	A< {…}     client A receives a frame
//
// The part "config" is an optional Config in JSON. Time is fake, and begins in
// 2000; ids are id-1, id-2, …
func TestHostFollowsTheTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			synctest.Test(t, func(t *testing.T) { got = playTranscript(t, archive) })
			want := part(archive, "transcript")
			if *update {
				want.Data = got
				if err := os.WriteFile(file, txtar.Format(archive), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(strings.Split(string(want.Data), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

// part returns a part of the archive by name. If the archive lacks it, part returns a new,
// empty file, which is not in the archive.
func part(archive *txtar.Archive, name string) *txtar.File {
	for i := range archive.Files {
		if archive.Files[i].Name == name {
			return &archive.Files[i]
		}
	}
	return &txtar.File{Name: name}
}

// playTranscript runs the steps on a new host. It returns the transcript with the
// frames that clients have received.
func playTranscript(t *testing.T, archive *txtar.Archive) []byte {
	cfg := struct {
		agenthost.Config
		Demo bool
	}{Config: agenthost.Config{NewID: counter()}}
	if raw := part(archive, "config").Data; raw != nil {
		if err := json.Unmarshal(raw, &cfg); err != nil {
			t.Fatal(err)
		}
	}
	build := buildFor(cfg.Config)
	if cfg.Demo {
		build = func(cfg agenthost.Config) (*agenthost.Host, error) { return scripted.New(cfg, scripted.Demo{}) }
	}
	host := newHostOf(t, cfg.Config, build)
	clients := make(map[string]*pipeClient)
	var out bytes.Buffer
	for step := range strings.Lines(string(part(archive, "transcript").Data)) {
		step = strings.TrimSuffix(step, "\n")
		name, frame, isSend := strings.Cut(step, "> ")
		switch {
		case strings.Contains(step, "< ") && len(strings.SplitN(step, "<", 2)[0]) < 4:
			continue // an expected frame
		case step == "" || strings.HasPrefix(step, "#"):
			fmt.Fprintln(&out, step)
			continue
		case strings.HasPrefix(step, "wait "):
			d, err := time.ParseDuration(strings.TrimPrefix(step, "wait "))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(d)
		case strings.HasPrefix(step, "close "):
			clients[strings.TrimPrefix(step, "close ")].close()
		case isSend:
			if clients[name] == nil {
				clients[name] = connectPipe(t, host)
			}
			fmt.Fprintln(clients[name].in, frame)
		default:
			t.Fatalf("the transcript has the unknown step %q", step)
		}
		fmt.Fprintln(&out, step)
		synctest.Wait()
		for _, name := range slices.Sorted(maps.Keys(clients)) {
			for _, frame := range clients[name].take() {
				fmt.Fprintf(&out, "%s< %s\n", name, frame)
			}
		}
	}
	return out.Bytes()
}

// counter returns a function for Config.NewID. The ids are id-1, id-2, and so on.
func counter() func() string {
	n := 0
	return func() string {
		n++
		return fmt.Sprintf("id-%d", n)
	}
}

// buildFor returns the function that makes a host for a configuration. Without agents,
// the host gets the scripted agent.
func buildFor(cfg agenthost.Config) func(agenthost.Config) (*agenthost.Host, error) {
	if len(cfg.Agents) == 0 {
		return func(cfg agenthost.Config) (*agenthost.Host, error) { return scripted.New(cfg) }
	}
	return agenthost.New
}

// newHost starts a host, which the test's end closes.
func newHost(t testing.TB, cfg agenthost.Config) *agenthost.Host {
	t.Helper()
	return newHostOf(t, cfg, buildFor(cfg))
}

func newHostOf(t testing.TB, cfg agenthost.Config, build func(agenthost.Config) (*agenthost.Host, error)) *agenthost.Host {
	t.Helper()
	host, err := build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Errorf("Close = %v; want no error", err)
		}
	})
	return host
}

// A pipeClient is a client of ServeStdio. It answers no request by itself.
type pipeClient struct {
	in *io.PipeWriter

	arrived chan struct{} // receives a value when a frame arrives; capacity 1

	mu     sync.Mutex
	frames []string
}

func connectPipe(t testing.TB, host *agenthost.Host) *pipeClient {
	hostIn, clientOut := io.Pipe()
	clientIn, hostOut := io.Pipe()
	c := &pipeClient{in: clientOut, arrived: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(func() { host.ServeStdio(context.Background(), hostIn, hostOut) })
	wg.Go(func() {
		lines := bufio.NewScanner(clientIn)
		lines.Buffer(nil, 1<<26)
		for lines.Scan() {
			c.mu.Lock()
			c.frames = append(c.frames, lines.Text())
			c.mu.Unlock()
			select {
			case c.arrived <- struct{}{}:
			default:
			}
		}
	})
	t.Cleanup(func() {
		c.close()
		wg.Wait()
	})
	return c
}

func (c *pipeClient) close() { c.in.Close() }

// take returns the frames that have arrived since the last call, without waiting.
func (c *pipeClient) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	frames := c.frames
	c.frames = nil
	return frames
}
