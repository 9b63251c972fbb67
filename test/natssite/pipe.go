package natssite

import (
	"io"
	"net/http"

	"github.com/coder/websocket"

	"ahprelay/broker"
	"ahprelay/broker/embedded"
)

// Pipe connects a request to the server, as a relay's endpoint /nats does.
func Pipe(w http.ResponseWriter, r *http.Request, server *embedded.Server) {
	idle := r.Header.Get(broker.StandbyHeader)
	if idle != "" {
		w.Header().Set(broker.StandbyHeader, idle)
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	remote := websocket.NetConn(r.Context(), ws, websocket.MessageBinary)
	if idle != "" && broker.ReadWake(remote) != nil {
		return
	}
	local, err := server.InProcessConn()
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(remote, local)
		remote.Close()
	}()
	_, _ = io.Copy(local, remote)
	local.Close()
	<-done
}
