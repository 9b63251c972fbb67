package gateway

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"ahprelay/ahp"
)

// tooMany answers a request that is over a limit (RFC 6585, section 4).
func (s *Server) tooMany(w http.ResponseWriter, over *overLimit, line auditLine) {
	s.metrics.refused.WithLabelValues("limit").Inc()
	line.Event, line.Reason = "refuse", over.name()
	s.audit.often(line)
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(over.Retry.Seconds()))))
	http.Error(w, over.Error(), http.StatusTooManyRequests)
}

// overRate tells a client that it sends too much, before it is closed.
func (c *client) overRate(over *overLimit, env *ahp.Envelope) {
	if env.Kind != ahp.Request {
		return
	}
	data, err := json.Marshal(map[string]any{"limit": over.Limit, "retryAfterMs": over.Retry.Milliseconds()})
	if err != nil {
		return
	}
	c.answer(ahp.AppendError(nil, env.ID, ahp.CodeRateLimited, over.Error(), data))
}
