package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// A listener is a TCP listener and, after serve, its HTTP server.
type listener struct {
	net.Listener
	maxHeader int // longest request header in bytes; 0: the constant maxHeader
	http      *http.Server
	done      sync.WaitGroup
}

// listen opens a listener. Its errors name the given flag.
func listen(ctx context.Context, flag, address, byDefault string) (*listener, error) {
	address = cmp.Or(address, byDefault)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w; choose another address with %s host:port", flag, address, unwrapOp(err), flag)
	}
	return &listener{Listener: l}, nil
}

// unwrapOp returns an error from package net without the operation and address.
func unwrapOp(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

func (l *listener) secure(config *tls.Config) { l.Listener = tlsListener{l.Listener, config} }

// An HTTP/2 connection without traffic gets a ping after http2Ping, and is closed if
// there is no answer within http2Pong.
const (
	http2Ping = 30 * time.Second
	http2Pong = 15 * time.Second
)

// serve serves requests. If conns is not nil, it bounds unauthenticated connections.
func (l *listener) serve(handler http.Handler, conns *httpConns, times requestTimes, log *slog.Logger) {
	times = cmp.Or(times, defaultTimes)
	l.http = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: times.header,
		ReadTimeout:       times.body,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    cmp.Or(l.maxHeader, maxHeader),
		HTTP2:             &http.HTTP2Config{SendPingTimeout: http2Ping, PingTimeout: http2Pong},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if conns != nil {
		l.http.ConnState, l.http.ConnContext = conns.state, conns.context
	}
	l.done.Go(func() {
		if err := l.http.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("listener failed", "address", l.Addr().String(), "error", err)
		}
	})
}

// stop refuses new requests, and gives current requests stopTimeout to finish. The Server
// ends the WebSockets, which no longer count as requests.
func (l *listener) stop() {
	if l.http == nil {
		_ = l.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if l.http.Shutdown(ctx) != nil {
		_ = l.http.Close()
	}
	l.done.Wait()
}
