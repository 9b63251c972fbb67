package connect_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/internal/connect"
)

// TestLimitedTokenIsNotWidened asks for a program's token for a host that the token does not open.
// The token must stay, and the error name the program. A program without a token gets one for all
// hosts.
func TestLimitedTokenIsNotWidened(t *testing.T) {
	tokens := (&connect.Home{Dir: t.TempDir()}).Tokens()
	made, err := tokens.Make("editor", []string{"laptop"}, auth.AccessTalk)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tokens.For("editor", "laptop"); err != nil || got.Token != made.Token {
		t.Errorf("For a host that the token opens = %v, %v; want the same token", got, err)
	}
	for _, host := range []string{"server", ""} {
		if _, err := tokens.For("editor", host); err == nil || !strings.Contains(err.Error(), `"editor"`) {
			t.Errorf("For the host %q that the token does not open: error %v; want one that names the program", host, err)
		}
	}
	list, err := tokens.List()
	if err != nil || len(list) != 1 || list[0].Token != made.Token || len(list[0].Hosts) != 1 {
		t.Errorf("the tokens are then %v, %v; want the limited one alone", list, err)
	}
	if other, err := tokens.For("other", "server"); err != nil || len(other.Hosts) > 0 {
		t.Errorf("For a program without a token = %v, %v; want one for all hosts", other, err)
	}
}

// TestTokensOfTwoProcesses makes tokens at the same time, as processes do that ask for an address. Each program's token must
// stay, and programs that ask for the same token must get the same.
func TestTokensOfTwoProcesses(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	var wg sync.WaitGroup
	var same [8]connect.LocalToken
	for i := range same {
		wg.Go(func() {
			var err error
			if same[i], err = home.Tokens().For("url", ""); err != nil {
				t.Error(err)
			}
			if _, err := home.Tokens().Make(fmt.Sprint("program ", i), nil, ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	list, err := home.Tokens().List()
	if err != nil || len(list) != len(same)+1 {
		t.Errorf("%d tokens are kept, %v; want %d", len(list), err, len(same)+1)
	}
	for _, one := range same {
		if one.Token != same[0].Token {
			t.Errorf("programs that ask for the same token get %s and %s; want the same", one.Token, same[0].Token)
		}
	}
}

// TestServeReturnsWithoutAListener calls Serve with a closed listener. It must return the error,
// although its context lives.
func TestServeReturnsWithoutAListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	cfg := connect.Config{Relays: connect.NewRelays(), Tokens: (&connect.Home{Dir: t.TempDir()}).Tokens(), Log: slog.New(slog.DiscardHandler)}
	ended := make(chan error, 1)
	go func() { ended <- connect.NewEndpoint(cfg).Serve(context.Background(), l) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("Serve with a closed listener returns nil; want its error")
		}
	case <-time.After(time.Minute):
		t.Error("Serve with a closed listener does not return")
	}
}
