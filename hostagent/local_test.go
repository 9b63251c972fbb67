package hostagent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// TestHostInThisProcessAnswers opens three connections to an echoing host in this process. Each
// connection must get its own message back, and a dial after Close must fail.
func TestHostInThisProcessAnswers(t *testing.T) {
	local := NewLocal("agents")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		for {
			kind, message, err := ws.Read(context.Background())
			if err != nil || ws.Write(context.Background(), kind, message) != nil {
				return
			}
		}
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(local) })
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = server.Close() })

	u := Upstream{Local: local}
	if err := u.Check(); err != nil || u.String() != "agents" || !u.isHere() {
		t.Errorf("Check() = %v, String() = %s, isHere() = %v; want no error, agents, true", err, u, u.isHere())
	}
	var sockets []hostSocket
	for range 3 {
		socket, err := u.dial(t.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		sockets = append(sockets, socket)
	}
	for i, socket := range sockets {
		if err := socket.Write([]byte{'{', byte('0' + i), '}'}, false); err != nil {
			t.Fatal(err)
		}
	}
	for i, socket := range sockets {
		message, _, err := socket.Read()
		if want := string([]byte{'{', byte('0' + i), '}'}); err != nil || string(message) != want {
			t.Errorf("Read() = %s, %v; want %s", message, err, want)
		}
		socket.Close("")
	}
	if err := local.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := u.dial(t.Context(), 1<<20); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial after Close: %v; want %v", err, net.ErrClosed)
	}
	if err := (Upstream{Local: local, URL: "ws://h"}).Check(); err == nil {
		t.Error("Check accepts a local host with a URL; want an error")
	}
}
