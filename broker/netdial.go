package broker

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// A dialFunc connects like net.Dialer.DialContext.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// A dialer makes the network connections of one Conn, one at a time.
type dialer func(network, address string) (net.Conn, error)

// Dial implements the dialer interface of the NATS library.
func (d dialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// newDialer returns a dialer that closes its previous connection before it dials. This
// is necessary because the library does not close a connection whose handshake has
// failed. The dialer reports each result to the Conn. Without credentials it does not
// dial: a connection that cannot log in costs a busy relay as much as a login.
func newDialer(life context.Context, dial dialFunc, of *Conn) dialer {
	var last net.Conn // the library dials under its lock
	return func(network, address string) (net.Conn, error) {
		if last != nil {
			_ = last.Close() // fails if it is closed already
		}
		if err := of.mayLogIn(); err != nil {
			of.failed(err)
			return nil, err
		}
		ctx, cancel := context.WithTimeout(life, DialTimeout)
		defer cancel()
		c, err := dial(ctx, network, address)
		last = c
		if err != nil {
			of.failed(err)
			return nil, err // not a typed nil
		}
		of.dialled(c)
		return c, nil
	}
}

// live returns a dialFunc whose connections end when life ends, or when no bytes move
// for some time.
func live(life context.Context, dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialLive(ctx, life, dial, network, address)
		if err != nil {
			return nil, err // not a typed nil
		}
		return c, nil
	}
}

func dialLive(ctx, life context.Context, dial dialFunc, network, address string) (*netConn, error) {
	c, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newNetConn(life, c, DialTimeout)
}

func dialTCP(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// proxied returns a dialFunc that connects through a proxy if choose returns one.
func proxied(dial dialFunc, choose func(address string) (*url.URL, error)) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		proxy, err := choose(address)
		if err != nil {
			return nil, fmt.Errorf("proxy for %s: %w", address, err)
		}
		if proxy == nil {
			return dial(ctx, network, address)
		}
		c, err := dialThrough(ctx, dial, proxy, network, address)
		if err != nil {
			return nil, fmt.Errorf("proxy %s: %w", redact(proxy), err)
		}
		return c, nil
	}
}

// dialThrough opens a tunnel through an HTTP proxy (RFC 9110, section 9.3.6).
func dialThrough(ctx context.Context, dial dialFunc, proxy *url.URL, network, address string) (net.Conn, error) {
	port := map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	if port == "" {
		return nil, fmt.Errorf("scheme %q is not http or https", proxy.Scheme)
	}
	if p := proxy.Port(); p != "" {
		port = p
	}
	c, err := dial(ctx, network, net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	if proxy.Scheme == "https" {
		c = tls.Client(c, &tls.Config{ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12})
	}
	if err := openTunnel(c, proxy.User, address); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func openTunnel(c net.Conn, user *url.Userinfo, address string) error {
	req := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{},
	}
	if user != nil {
		password, _ := user.Password()
		login := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		req.Header.Set("Proxy-Authorization", "Basic "+login)
	}
	if err := req.Write(c); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 4096)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return err
	}
	// The body is the tunnel, so it is not closed here.
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("refused to connect to %s: %s", address, resp.Status)
	}
	if r.Buffered() > 0 {
		return errors.New("sent bytes before the WebSocket handshake")
	}
	return nil
}

// proxy returns the proxy for a ws or wss address, or nil.
func (cfg *AgentDialConfig) proxy(address string) (*url.URL, error) {
	u := &url.URL{Scheme: "http", Host: address}
	if isTLS(cfg.URLs[0]) {
		u.Scheme = "https"
	}
	if cfg.Proxy != nil {
		return cfg.Proxy(u)
	}
	return http.ProxyFromEnvironment(&http.Request{URL: u})
}
