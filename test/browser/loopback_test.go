//go:build !race

package browser_test

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"ahprelay/internal/connect"
)

// behindConnect starts an ahp-connect that serves the console and reaches the relay at
// an address. It returns the URL of the console.
func (s *site) behindConnect(relay string) string {
	t := s.t
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(s.token(time.Hour)), 0o600))
	tokens := connect.NewTokens("")
	local, err := tokens.Make("console", nil, "")
	must(t, err)
	l, err := connect.Listen("127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- connect.NewEndpoint(connect.Config{
			Relays: connect.NewRelays(connect.NewRelay("http://"+relay, connect.FileTokens(file))), Tokens: tokens, Log: slog.New(slog.DiscardHandler),
		}).Serve(ctx, l)
	}()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	return "http://" + l.Addr().String() + "/#" + url.Values{"token": {local.Token}}.Encode()
}

// TestConsoleFromLoopback opens the console that ahp-connect serves, with a local
// token. It sends an agent a prompt and gets an answer.
func TestConsoleFromLoopback(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	s := startStack(t)
	p.do(desktop(), chromedp.Navigate(s.behindConnect(s.proxy.Addr().String())))
	p.wants("#status-text", "Live")
	p.openSession("demo:/login")
	p.wants("#turns", "Done. 500 runs")
	p.say("hello")
	p.wants("#turns", "Hello, world!")
	p.shot("loopback")
}
