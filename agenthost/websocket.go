package agenthost

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"ahprelay/ahp"
)

// closeTimeout bounds the wait for a client's close frame.
const closeTimeout = time.Second

// ServeHTTP serves AHP over WebSocket, on any path and for any Origin, like VS Code's
// host. It returns when the connection has ended. It does not authenticate clients,
// except by [Config.ConnectionToken]; the listener must restrict access.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.admits(r) {
		h.log.Warn("connection refused", "reason", "wrong connection token", "address", r.RemoteAddr)
		http.Error(w, "Forbidden", http.StatusForbidden)
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		h.log.Info("connection refused", "address", r.RemoteAddr, "error", err)
		return // Accept has answered
	}
	ws.SetReadLimit(int64(h.cfg.MaxFrame))
	err = h.serve(&wsLink{ws: ws})
	h.log.Debug("websocket ended", "address", r.RemoteAddr, "error", err)
}

// admits checks the connection token. It refuses a request that repeats the
// parameter.
func (h *Host) admits(r *http.Request) bool {
	if h.cfg.ConnectionToken == "" {
		return true
	}
	given := r.URL.Query()["tkn"]
	return len(given) == 1 && subtle.ConstantTimeCompare([]byte(given[0]), []byte(h.cfg.ConnectionToken)) == 1
}

// A wsLink is a link over a WebSocket. Binary frames are read like text.
type wsLink struct{ ws *websocket.Conn }

func (l *wsLink) Send(msg []byte) error {
	return l.ws.Write(context.Background(), websocket.MessageText, msg)
}

func (l *wsLink) Recv() ([]byte, error) {
	_, msg, err := l.ws.Read(context.Background())
	if websocket.CloseStatus(err) != -1 {
		return nil, io.EOF
	}
	return msg, err
}

func (l *wsLink) Close(cause error) error {
	code, reason := closeStatus(cause)
	if code == 0 {
		return l.ws.CloseNow()
	}
	// Close waits for the client's close frame, and for a write in progress.
	timeout := time.AfterFunc(closeTimeout, func() { l.ws.CloseNow() })
	defer timeout.Stop()
	return l.ws.Close(code, reason)
}

// closeStatus returns the close code and reason for the end of a connection. Code 0
// means no close frame.
func closeStatus(cause error) (code websocket.StatusCode, reason string) {
	switch {
	case errors.Is(cause, errHostClosed):
		return websocket.StatusGoingAway, cause.Error()
	case errors.Is(cause, errSlow):
		return websocket.StatusCode(ahp.CloseOverloaded), cause.Error()
	}
	return 0, ""
}
