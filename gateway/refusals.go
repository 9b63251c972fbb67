package gateway

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/admission"
	"ahprelay/gateway/audit"
)

// refused counts a refusal, and writes it down. Why and what is more exact are
// of few words each: see audit.refuse.
func (s *Server) refused(why, exactly string, line audit.Line) {
	s.metrics.refused.WithLabelValues(why).Inc()
	s.audit.Refuse(why+" "+exactly, line)
}

// tokenTrouble are the kinds of what is wrong with a token that are told apart.
var tokenTrouble = []error{errNoToken, auth.ErrTokenExpired, auth.ErrTokenRevoked, errUsedUp}

// troubleOf is which of these an error is.
func troubleOf(err error) string {
	i := slices.IndexFunc(tokenTrouble, func(kind error) bool { return errors.Is(err, kind) })
	if i < 0 {
		return "" // it may say what somebody has put into a token
	}
	return tokenTrouble[i].Error()
}

// tooMany answers a request that is over a limit (RFC 6585, section 4).
func (s *Server) tooMany(w http.ResponseWriter, over *admission.OverLimit, line audit.Line) {
	line.Reason = over.Name()
	s.refused("limit", over.Limit, line)
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(over.Retry.Seconds()))))
	http.Error(w, over.Error(), http.StatusTooManyRequests)
}

// overRate tells a client that it sends too much, before it is closed.
func (c *client) overRate(over *admission.OverLimit, env *ahp.Envelope) {
	if env.Kind != ahp.Request {
		return
	}
	data, err := json.Marshal(map[string]any{"limit": over.Limit, "retryAfterMs": over.Retry.Milliseconds()})
	if err != nil {
		return
	}
	c.answer(ahp.AppendError(nil, env.ID, ahp.CodeRateLimited, over.Error(), data))
}
