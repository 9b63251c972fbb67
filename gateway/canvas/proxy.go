package canvas

import (
	"log/slog"
	"net/http"
	"net/http/httputil"

	"ahprelay/contentproxy"
)

// A finalWriter forwards final responses and 101. It drops informational responses (1xx)
// and trailers, because they are not part of a page and would bypass the checks of
// headers.
type finalWriter struct {
	http.ResponseWriter
	behind http.Header // collects headers set after the response has begun, which are dropped; nil before
}

func (w *finalWriter) Header() http.Header {
	if w.behind != nil {
		return w.behind
	}
	return w.ResponseWriter.Header()
}

func (w *finalWriter) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	if w.behind == nil {
		w.ResponseWriter.Header().Del("Trailer")
		w.behind = http.Header{}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap implements the method that [http.ResponseController] needs.
func (w *finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (c *Canvases) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     c.transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Rewrite: func(pr *httputil.ProxyRequest) {
			s, _ := pr.In.Context().Value(sessionKey{}).(*canvasSession)
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", s.pool
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // undoes ReverseProxy's cleaning
			pr.Out.Host = pr.In.Host
			hide(pr.Out.Header)
			keepOnly(pr.Out.Header, func(one cookie) bool { return one.name != c.Origin.cookieName() })
		},
		ModifyResponse: func(response *http.Response) error {
			s, _ := response.Request.Context().Value(sessionKey{}).(*canvasSession)
			if eventsOf(response.Request.Context()) != nil && response.Header.Get(contentproxy.ForNowHeader) != "" {
				return errForNow
			}
			response.Header.Del(contentproxy.ForNowHeader)
			c.framable(response.Header, s.Page)
			for _, one := range response.Cookies() {
				c.cookies.add(s.name, one.Name)
			}
			if len(response.Request.Header["Upgrade"]) > 0 && response.StatusCode != http.StatusSwitchingProtocols {
				response.Header.Set("Connection", "close") // see closeUpgrades
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			status, why := refusedStatus(r.Context(), err)
			if events := eventsOf(r.Context()); events != nil && (status == http.StatusBadGateway || status == http.StatusServiceUnavailable) {
				events.refused = true
				return
			}
			if status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", "2")
			}
			if len(r.Header["Upgrade"]) > 0 {
				w.Header().Set("Connection", "close")
			}
			refuseCanvas(w, status, why)
		},
	}
}
