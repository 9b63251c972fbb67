package gateway

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
)

// newProxy returns the proxy to the host-agents.
func (c *canvases) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     c.transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Rewrite: func(pr *httputil.ProxyRequest) {
			s, _ := pr.In.Context().Value(sessionKey{}).(*canvasSession)
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", s.pool
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it came
			pr.Out.Host = pr.In.Host
			hide(pr.Out.Header)
			c.hiddenCookies(pr.Out.Header)
		},
		ModifyResponse: func(response *http.Response) error {
			s, _ := response.Request.Context().Value(sessionKey{}).(*canvasSession)
			c.framable(response.Header, s.Page)
			if len(response.Request.Header["Upgrade"]) > 0 && response.StatusCode != http.StatusSwitchingProtocols {
				response.Header.Set("Connection", "close") // see closeUpgrades
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			status, why := refusedStatus(r.Context(), err)
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
