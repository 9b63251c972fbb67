package large

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ahprelay/test/procs"
	"ahprelay/test/refclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// largeMessage is the host's limit for a message in bytes, and hugeMessage is the
	// limit in a second test. Buffers between client and host have no fixed size above
	// hugeMessage.
	largeMessage = 8 << 20
	hugeMessage  = 72 << 20

	// smallClients is the number of clients with small messages, beside the client with
	// large messages.
	smallClients = 20

	// patience limits each step, on a slow machine too.
	patience = 4 * time.Minute
)

// newSite starts relay, host-agent and host. It returns the site, and a directory to
// which clients may write files.
func newSite(tb testing.TB, noRecord bool, hostFlags ...string) (site *procs.Site, root string) {
	tb.Helper()
	return newSiteOf(tb, procs.Config{NoRecord: noRecord, HostFlags: hostFlags})
}

// newSiteOf is newSite with a configuration for the site.
func newSiteOf(tb testing.TB, cfg procs.Config) (site *procs.Site, root string) {
	tb.Helper()
	programs, err := procs.Build(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	root = tb.TempDir()
	cfg.Bench = procs.Bench{Programs: programs, Dir: tb.TempDir()}
	cfg.HostFlags = append([]string{"--root", root, "--writable"}, cfg.HostFlags...)
	// The client's library ends a connection if it cannot answer a ping within 5 s, as when the
	// ping arrives just before the client sends a large message.
	cfg.RelayFlags = append([]string{"--ping", (2 * patience).String()}, cfg.RelayFlags...)
	site, err = procs.Start(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("relay:\n%s\nhost-agent:\n%s", site.Relay.Log(), site.Agent.Log())
		}
		site.Close()
	})
	return site, root
}

// join connects a client to url, which is the relay's or the host's, and initializes
// it.
func join(tb testing.TB, site *procs.Site, url, id string, opts refclient.Options) *refclient.Client {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	var err error
	if opts.Token, err = site.Token(); err != nil {
		tb.Fatal(err)
	}
	c, err := refclient.Dial(ctx, url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: id}); err != nil {
		tb.Fatal(err)
	}
	return c
}

// smallParams makes a ping that is 512 bytes long.
var smallParams = map[string]string{"channel": "ahp-root://", "pad": strings.Repeat("x", 420)}

// TestLargeFramesPassUnchanged reads and writes files by messages with 8 MiB, while
// other clients exchange small messages. Every message arrives byte for byte.
func TestLargeFramesPassUnchanged(t *testing.T) {
	site, root := newSite(t, false, "--max-frame", fmt.Sprint(largeMessage))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	clients := map[string]*refclient.Client{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range smallClients {
		id := fmt.Sprint("small-", i)
		c := join(t, site, site.URL(), id, refclient.Options{})
		clients[id] = c
		wg.Go(func() {
			for err := error(nil); err == nil; _, err = c.Call(ctx, "ping", smallParams) {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
			t.Errorf("no answer to the ping %s arrives; want one", id)
		})
	}
	large := join(t, site, site.URL(), "large", refclient.Options{})
	clients["large"] = large
	read := readLarge(ctx, t, large, largeMessage)
	request := writeLarge(ctx, t, large, filepath.Join(root, "large"), largeMessage)
	close(stop)
	wg.Wait()
	wantPassed(t, site, clients, read, request)
}

// TestHugeFramesPassUnchanged reads and writes a file by messages with 72 MiB, which
// arrive byte for byte.
func TestHugeFramesPassUnchanged(t *testing.T) {
	site, root := newSite(t, false, "--max-frame", fmt.Sprint(hugeMessage))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := join(t, site, site.URL(), "large", refclient.Options{MaxFrame: hugeMessage})
	read := readLarge(ctx, t, c, hugeMessage)
	request := writeLarge(ctx, t, c, filepath.Join(root, "large"), hugeMessage)
	wantPassed(t, site, map[string]*refclient.Client{"large": c}, read, request)
}

// TestManyLargeMessagesFitIntoMemory lets six clients send 10 MiB each at once, while
// relay and host-agent may queue 32 MiB. Every message arrives, and no client is
// closed.
func TestManyLargeMessagesFitIntoMemory(t *testing.T) {
	const size, clients = 10 << 20, 6
	memory := []string{"--max-queued", fmt.Sprint(32 << 20), "--max-frame", fmt.Sprint(12 << 20)}
	site, root := newSiteOf(t, procs.Config{NoRecord: true, RelayFlags: memory, AgentFlags: memory})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i := range clients {
		id := fmt.Sprint("large-", i)
		c := join(t, site, site.URL(), id, refclient.Options{})
		wg.Go(func() { writeLarge(ctx, t, c, filepath.Join(root, id), size) })
	}
	wg.Wait()
}

// wantPassed fails unless each client has received what the host sent to it, and the
// host has received the large request.
func wantPassed(t *testing.T, site *procs.Site, clients map[string]*refclient.Client, read, request []byte) {
	t.Helper()
	conns, err := site.HostConns()
	if err != nil {
		t.Fatal(err)
	}
	for id, c := range clients {
		wantSame(t, id, c.Frames(), conns[id].Sent)
	}
	if sent := conns["large"].Sent; !slices.ContainsFunc(sent, func(f []byte) bool { return bytes.Equal(f, read) }) {
		t.Error("the client received a frame that the host did not send; want one that it sent")
	}
	if got := conns["large"].Received; !bytes.Equal(got[len(got)-1], request) {
		t.Error("the last frame at the host differs from the request which the client sent")
	}
}

// readLarge reads a file whose response is size bytes long, and returns the response.
func readLarge(ctx context.Context, t *testing.T, c *refclient.Client, size int) []byte {
	t.Helper()
	answer := func(n int) []byte {
		if _, err := c.Call(ctx, "resourceRead", blob(n)); err != nil {
			t.Fatal(err)
		}
		frames := c.Frames()
		return frames[len(frames)-1]
	}
	got := answer(largeBlob(len(answer(0)), size))
	if len(got) < size-blobLine || len(got) > size {
		t.Fatalf("the answer has %d bytes; want %d", len(got), size)
	}
	t.Logf("%d bytes to the client", len(got))
	return got
}

// blobLine is the length of a line in the content that the host serves for demo-blob,
// in bytes. The last byte is a line feed, which takes two bytes in JSON.
const blobLine = 64

func blob(n int) map[string]string {
	return map[string]string{"channel": "ahp-root://", "uri": fmt.Sprint("demo-blob:/", n)}
}

// largeBlob returns how long the content must be to make a response with size bytes.
// empty is the length of a response without content.
func largeBlob(empty, size int) int {
	room := size - empty
	lines := room / (blobLine + 1)
	return lines*blobLine + min(room-lines*(blobLine+1), blobLine-1)
}

// writeLarge writes a file by a request that is size bytes long, waits for the
// response, and returns the request.
func writeLarge(ctx context.Context, t *testing.T, c *refclient.Client, file string, size int) []byte {
	t.Helper()
	frame, data := writeRequest("large", file, size)
	if err := c.SendRaw(frame); err != nil {
		t.Error(err)
		return nil
	}
	if _, err := c.WaitFor(ctx, func(f []byte) bool { return string(f) == `{"jsonrpc":"2.0","id":"large","result":{}}` }); err != nil {
		t.Error(err)
		return nil
	}
	if written, err := os.ReadFile(file); err != nil || string(written) != data {
		t.Errorf("the file has %d bytes, %v; want %d", len(written), err, len(data))
	}
	t.Logf("%d bytes to the host", len(frame))
	return frame
}

// writeRequest returns a request that is size bytes long, and the data that it writes
// to a file.
func writeRequest(id, file string, size int) (frame []byte, data string) {
	head := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"resourceWrite","params":{"channel":"ahp-root://","uri":"file://%s","data":"`, id, file)
	const line, tail = "0123456789abcdefghijklmnopqrstuv", `","encoding":"utf-8"}}`
	data = strings.Repeat(line, size/len(line))[:size-len(head)-len(tail)]
	return []byte(head + data + tail), data
}

func wantSame(t *testing.T, who string, got, want [][]byte) {
	t.Helper()
	if len(got) < 2 || !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%s received %d frames; want the %d that the host sent", who, len(got), len(want))
	}
}
