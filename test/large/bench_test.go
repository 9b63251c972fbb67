package large

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/test/procs"
	"ahprelay/test/refclient"
)

// maxMessage is the default limit for a message at a host.
const maxMessage = 32 << 20

// smallEvery is the time between two requests of a small client.
const smallEvery = 20 * time.Millisecond

// BenchmarkSmallBesideLarge measures round trips of 512-byte requests by 20 clients,
// directly at the host and through the relay. Meanwhile a further client exchanges
// messages with 32 MiB, or none. An operation is an exchange of such a message.
func BenchmarkSmallBesideLarge(b *testing.B) {
	site, root := newSite(b, true)
	for _, path := range []struct{ name, url string }{{"direct", site.HostURL()}, {"relayed", site.URL()}} {
		for _, large := range []string{"none", "to the client", "to the host"} {
			b.Run(path.name+"/"+large, func(b *testing.B) {
				c := newLargeClient(b, site, path.url, root)
				stop := paced(b, site, path.url)
				for b.Loop() {
					switch large {
					case "none": // waits about as long as a large message takes
						time.Sleep(300 * time.Millisecond)
					case "to the client":
						c.exchange(b, c.read)
					case "to the host":
						c.exchange(b, c.write)
					}
				}
				delays := stop()
				b.ReportMetric(ms(delays[len(delays)/2]), "p50-ms")
				b.ReportMetric(ms(delays[len(delays)*99/100]), "p99-ms")
				b.ReportMetric(ms(delays[len(delays)-1]), "max-ms")
			})
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// paced makes small clients send requests, one in each smallEvery. The returned
// function stops the clients, and returns the sorted round trips.
func paced(b *testing.B, site *procs.Site, url string) func() []time.Duration {
	b.Helper()
	var mu sync.Mutex
	var delays []time.Duration
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	for i := range smallClients {
		c := join(b, site, url, string(rune('a'+i)), refclient.Options{NoRecord: true})
		wg.Go(func() {
			ticker := time.NewTicker(smallEvery)
			defer ticker.Stop()
			for {
				select {
				case <-ticker.C:
				case <-ctx.Done():
					return
				}
				began := time.Now()
				if _, err := c.Call(b.Context(), "ping", smallParams); err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				delays = append(delays, time.Since(began))
				mu.Unlock()
			}
		})
	}
	return func() []time.Duration {
		cancel()
		wg.Wait()
		slices.Sort(delays)
		return delays
	}
}

// A largeClient sends and receives large messages without parsing them, which would
// slow down the measurement.
type largeClient struct {
	ws          *websocket.Conn
	read, write []byte
}

func newLargeClient(b *testing.B, site *procs.Site, url, root string) *largeClient {
	b.Helper()
	token, err := site.Token()
	if err != nil {
		b.Fatal(err)
	}
	ws, _, err := websocket.Dial(b.Context(), url, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(-1)
	c := &largeClient{ws: ws}
	c.exchange(b, []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"large","protocolVersions":["0.9.0"]}}`))
	params, err := json.Marshal(blob(largeBlob(200, maxMessage)))
	if err != nil {
		b.Fatal(err)
	}
	c.read = []byte(`{"jsonrpc":"2.0","id":2,"method":"resourceRead","params":` + string(params) + `}`)
	c.write, _ = writeRequest("large", filepath.Join(root, "large"), maxMessage)
	return c
}

// exchange sends a request and reads the answer, which it discards.
func (c *largeClient) exchange(b *testing.B, request []byte) {
	b.Helper()
	if err := c.ws.Write(b.Context(), websocket.MessageText, request); err != nil {
		b.Fatal(err)
	}
	_, r, err := c.ws.Reader(b.Context())
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		b.Fatal(err)
	}
}
