package resume_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/broker/resume"
)

// BenchmarkRoundTrip sends 200 bytes to an echo over TCP: through a stream, and, for
// comparison, through its WebSocket alone. It pauses between requests, as people do, so each
// hand-over between goroutines wakes a thread. The result is the median.
func BenchmarkRoundTrip(b *testing.B) {
	message := make([]byte, 200)
	relay := resume.NewRelay(resume.RelayConfig{Window: resume.DefaultWindow, Time: resume.DefaultTime, MaxStreams: 1000})
	serve := func(carrier resume.Carrier) {
		_ = relay.Serve(carrier, resume.NewPool(1<<30, 1<<30), "ada", &net.TCPAddr{}, &net.TCPAddr{})
	}
	echo := func(carrier resume.Carrier) {
		for {
			packet, err := carrier.Recv()
			if err != nil || carrier.Send(packet) != nil {
				return
			}
		}
	}
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		if carrier := resume.NewWebSocket(r.Context(), ws); r.URL.Path == "/echo" {
			echo(carrier)
		} else {
			serve(carrier)
		}
	}))
	defer site.Close()
	dial := func(ctx context.Context, path string) (resume.Carrier, error) {
		ws, _, err := websocket.Dial(ctx, site.URL+path, nil)
		if err != nil {
			return nil, err
		}
		return resume.NewWebSocket(ctx, ws), nil
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	measure := func(b *testing.B, once func()) {
		var took []time.Duration
		for b.Loop() {
			time.Sleep(2 * time.Millisecond)
			start := time.Now()
			once()
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/request")
	}
	b.Run("stream", func(b *testing.B) {
		client, over, err := resume.Dial(ctx, func(ctx context.Context) (resume.Carrier, error) { return dial(ctx, "/stream") })
		if err != nil {
			b.Fatal(err)
		}
		server, err := relay.Accept()
		if err != nil {
			b.Fatal(err)
		}
		go func() { _, _ = io.Copy(server, server) }()
		answer := make([]byte, len(message))
		measure(b, func() {
			if _, err := client.Write(message); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(client, answer); err != nil {
				b.Fatal(err)
			}
		})
		_ = client.Close()
		<-over
	})
	b.Run("websocket", func(b *testing.B) {
		carrier, err := dial(ctx, "/echo")
		if err != nil {
			b.Fatal(err)
		}
		defer carrier.Close()
		measure(b, func() {
			if err := carrier.Send(message); err != nil {
				b.Fatal(err)
			}
			if _, err := carrier.Recv(); err != nil {
				b.Fatal(err)
			}
		})
	})
	_ = relay.Close()
}
