package contentproxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
)

// Content by URL is served by a reverse proxy to the canvas's single web server. To that server, a
// request looks like one from a browser on the host's machine: Host, Origin and Referer name the
// server's origin instead of the canvas's. Redirects to other origins are refused.

type placeKey struct{}

func newProxy(cfg *Config) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            cfg.dial,
			TLSClientConfig:        cfg.tls(),
			DisableCompression:     true,
			MaxIdleConnsPerHost:    32,
			IdleConnTimeout:        10 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
			WriteBufferSize:        32 << 10,
			ReadBufferSize:         32 << 10,
		},
		FlushInterval:  -1,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ModifyResponse: keepWithin,
		ErrorHandler:   proxyFailed,
	}
}

// Serve answers an HTTP request with content from a place. The caller must not pass a place for
// which [Place.AtHost] returns true.
func (h *Host) Serve(w http.ResponseWriter, r *http.Request, p Place) {
	if len(r.URL.Path) == 0 || r.URL.Path[0] != '/' || r.Method == http.MethodConnect {
		http.Error(w, "the address is malformed", http.StatusBadRequest)
		return
	}
	if p.at.scheme == filesScheme {
		serveFile(w, r, p.at.host)
		return
	}
	h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), placeKey{}, p)))
}

// PlaceOf returns the place of a canvas's content. It fails if the host has closed the canvas or
// now shows a different instance, according to the host's last description.
func (h *Host) PlaceOf(known *view.Host, channel, instance string) (Place, error) {
	canvas, _ := known.Canvas(channel)
	switch {
	case canvas.Instance != instance:
		return Place{}, refuse(ahp.CodeNotFound, "the host no longer shows that canvas to the client")
	case canvas.Closed:
		return Place{}, refuse(ahp.CodeNotFound, "the canvas is closed")
	case h.cfg.Off:
		return Place{}, nil
	}
	return Place{h.origin(known, channel, canvas)}, nil
}

// PlaceAt returns the place for a port on the loopback interface. It fails if reads from that port
// are forbidden.
func (h *Host) PlaceAt(port string) (Place, error) {
	if h.denied(port) {
		return Place{}, refuse(ahp.CodePermissionDenied, "this port of the host is blocked")
	}
	return Place{origin{"http", "localhost", port}}, nil
}

func (o origin) base() *url.URL {
	u := &url.URL{Scheme: o.scheme, Host: o.host}
	if o.port != defaultPorts[o.scheme] {
		u.Host += ":" + o.port
	}
	return u
}

// rewrite changes a request to the canvas's origin into a request to the web server.
func rewrite(pr *httputil.ProxyRequest) {
	place, _ := pr.In.Context().Value(placeKey{}).(Place)
	to := place.at.base()
	pr.Out.URL.Scheme, pr.Out.URL.Host = to.Scheme, to.Host
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // undoes ReverseProxy's cleaning
	pr.Out.Host = to.Host
	h := pr.Out.Header
	if at, ok := within(h.Get("Origin"), pr.In.Host); ok && at.Path == "" {
		h.Set("Origin", to.String())
	}
	if at, ok := within(h.Get("Referer"), pr.In.Host); ok {
		at.Scheme, at.Host = to.Scheme, to.Host
		h.Set("Referer", at.String())
	} else {
		h.Del("Referer") // the application need not know which page shows the canvas
	}
}

// within parses an address, and reports whether it is an http or https URL at the given host.
func within(text, host string) (*url.URL, bool) {
	u, err := url.Parse(text)
	ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
	return u, ok
}

var errLeads = errors.New("the canvas's server redirects to a different origin; such redirects are not followed")

// ForNowHeader marks a response that the host-agent makes itself while the web server does not
// answer. Relays remove the header. They do not forward such a response to an event stream: see
// gateway/canvas/events.go.
const ForNowHeader = "Ahp-Canvas-For-Now"

// keepWithin rewrites the redirect in a response as a URL without an origin. It returns errLeads if
// the redirect leads to another origin.
func keepWithin(response *http.Response) error {
	place, _ := response.Request.Context().Value(placeKey{}).(Place)
	h := response.Header
	h.Del(ForNowHeader)
	if leads := h["Location"]; len(leads) > 0 {
		to, err := place.at.local(leads[0])
		if err != nil || len(leads) > 1 {
			return errLeads
		}
		h.Set("Location", to)
	}
	if h.Get("Refresh") != "" {
		h.Del("Refresh") // could lead to any origin
	}
	return nil
}

// local returns an address without its scheme, host and port. The branches find addresses that a
// browser could resolve to a different origin, for which it returns errLeads.
func (o origin) local(address string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Opaque != "" || u.User != nil || strings.ContainsRune(address, '\\'):
		return "", errLeads
	case u.Scheme == "" && u.Host == "" && !strings.HasPrefix(u.Path, "//"):
		return address, nil
	case u.Scheme == "":
		u.Scheme = o.scheme
	}
	to, _, ok := splitOrigin(u.String())
	if !ok || to != o && !(to.loopback() && o.loopback() && to.port == o.port) {
		return "", errLeads
	}
	path := u.EscapedPath()
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		path = "/" + strings.TrimLeft(path, "/")
	}
	local := url.URL{RawQuery: u.RawQuery, ForceQuery: u.ForceQuery, Fragment: u.Fragment, RawFragment: u.RawFragment}
	return path + local.String(), nil
}

// proxyFailed responds when there is no response from the web server to forward.
func proxyFailed(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errLeads):
		http.Error(w, err.Error(), http.StatusBadGateway)
	case r.Context().Err() != nil: // the client is gone
		w.WriteHeader(http.StatusBadGateway)
	default:
		w.Header().Set(ForNowHeader, "1")
		http.Error(w, "the canvas's server on the host does not answer", http.StatusBadGateway)
	}
}
