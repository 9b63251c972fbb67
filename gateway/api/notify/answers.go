package notify

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/audit"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
)

// Somebody can answer an event without opening a page.
//
//	POST /api/answers/{capability}  {"text"} if it is for words; else no body is needed
//	POST /api/answers/{event}       {"host", "option" | "text"}, with a token
//
// A capability comes with a notification. It is for one answer of one person to one
// event as it was shown there, for a day, and as long as the way that it came by and
// the token with which that was set are good. The host gets one answer, however often
// and wherever it is given: the host-agent sees to that, and to what the person may.
// The answer is {"result": "given"}, or an error with 409 (and "by", if somebody was first), 410
// (nobody asks that any more), 403, 404 (no such capability), 400, or 503 (try again).

// A capability is to answer an event.
type capability struct {
	Tenant  string `json:"t"`
	Host    string `json:"h"`
	Event   string `json:"e"`
	Digest  string `json:"d"`
	Option  string `json:"o,omitempty"` // "": for words
	Subject string `json:"s"`
	Way     string `json:"w"`
	Expires int64  `json:"x"` // Unix time
}

// capabilityTTL is how long one is good.
const capabilityTTL = 24 * time.Hour

// maxCapability is how long one may be, in bytes.
const maxCapability = 4 << 10

// Capability makes the answer of a person to what is told by a job; "" if they may not
// give it.
func (a *API) Capability(job *notify.Job, who auth.Client, o notice.Option) string {
	if !mayAnswer(who, job.Tenant, job.Host, &job.Event) {
		return ""
	}
	body, err := json.Marshal(capability{
		Tenant: job.Tenant, Host: job.Host, Event: job.Event.ID, Digest: job.Event.Digest(), Option: o.ID,
		Subject: job.Subject, Way: job.Way, Expires: time.Now().Add(capabilityTTL).Unix(),
	})
	if err != nil {
		return "" // no field can fail
	}
	_, signature := a.Caller.Keys.Sign(auth.AnswerCapability, body)
	return base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// mayAnswer reports whether a token allows to answer an event.
func mayAnswer(who auth.Client, tenant, host string, e *notice.Event) bool {
	needs := auth.AccessTalk
	if e.Kind == notice.Approval {
		needs = auth.AccessApprove
	}
	return notify.MayHear(who, tenant, host, e) && who.Access.Includes(needs) &&
		(len(who.Methods) == 0 || auth.MatchesAny(who.Methods, "dispatchAction"))
}

// errCapability reports what is no capability, or not any more.
var errCapability = errors.New("this answer is not known here, or its time is over")

// readCapability returns a capability that is good, and whose answer it is.
func (a *API) readCapability(text string) (c capability, who auth.Client, err error) {
	first, second, ok := strings.Cut(text, ".")
	body, err1 := base64.RawURLEncoding.Strict().DecodeString(first)
	signature, err2 := base64.RawURLEncoding.Strict().DecodeString(second)
	genuine := func(key ed25519.PublicKey) bool {
		return auth.CheckSigned([]ed25519.PublicKey{key}, auth.AnswerCapability, body, key, signature) == nil
	}
	if !ok || len(text) > maxCapability || err1 != nil || err2 != nil ||
		!slices.ContainsFunc(a.Caller.Keys.RelayKeys(), genuine) ||
		json.Unmarshal(body, &c) != nil || time.Now().Unix() > c.Expires {
		return c, who, errCapability
	}
	for _, way := range a.teller.Person(c.Tenant, c.Subject).Ways {
		if way.ID == c.Way {
			if who, good := a.Standing(way.Who); good {
				return c, who, nil
			}
		}
	}
	return c, who, errCapability
}

// An answerBody is what comes with a POST.
type answerBody struct {
	Host   string `json:"host"`
	Option string `json:"option"`
	Text   string `json:"text"`
}

func (a *API) serveAnswer(w http.ResponseWriter, r *http.Request) {
	if a.teller == nil {
		authn.WriteError(w, http.StatusNotFound, errCapability)
		return
	}
	var body answerBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNotify)).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body is no JSON of host, option and text"))
		return
	}
	id := r.PathValue("id")
	answer := notice.Answer{Event: id, Host: body.Host, Option: body.Option, Text: body.Text}
	var who auth.Client
	if r.Header.Get("Authorization") != "" {
		var ok bool
		if who, ok = a.Caller.Client(w, r); !ok {
			return
		}
		defer a.follow(r.Context(), who.Tenant)()
		e, open := a.Board.Open(who.Tenant, body.Host, id)
		switch {
		case !open || !notify.MayHear(who, who.Tenant, body.Host, &e):
			authn.WriteError(w, http.StatusGone, errors.New("nobody asks that any more"))
			return
		case !mayAnswer(who, who.Tenant, body.Host, &e):
			authn.WriteError(w, http.StatusForbidden, errors.New("this token may not answer that"))
			return
		}
		answer.Tenant, answer.Digest = who.Tenant, e.Digest()
	} else {
		c, holder, err := a.readCapability(id)
		if err != nil {
			if a.Caller.TooManyFailures(w, r) {
				return
			}
			a.Caller.Refuse("answer", "", audit.Line{Address: a.Caller.Address(r), Reason: err.Error()})
			authn.WriteError(w, http.StatusNotFound, err)
			return
		}
		who = holder
		answer = notice.Answer{Tenant: c.Tenant, Host: c.Host, Event: c.Event, Digest: c.Digest, Option: c.Option}
		if c.Option == "" {
			answer.Text = body.Text
		}
	}
	answer.Subject, answer.Token, answer.Access, answer.Channels, answer.Methods = who.Subject, who.ID, string(who.Access), who.Channels, who.Methods
	answer.Remote = a.Caller.Address(r)
	a.give(r.Context(), w, answer)
}

// give gives an answer, and says what became of it.
func (a *API) give(ctx context.Context, w http.ResponseWriter, answer notice.Answer) {
	out, err := a.answer(ctx, answer)
	if err != nil {
		authn.WriteError(w, http.StatusServiceUnavailable, err)
		return
	}
	said := map[string]string{"result": string(out.Result)}
	status := http.StatusOK
	switch out.Result {
	case notice.Given:
	case notice.Answered:
		status, said["error"] = http.StatusConflict, "answered already"
		if out.By != "" {
			said["error"], said["by"] = "answered already by "+out.By, out.By
		}
	case notice.Unknown:
		status, said["error"] = http.StatusGone, "nobody asks that any more: it was answered, or the agent has gone on"
	case notice.Changed:
		status, said["error"] = http.StatusConflict, "what is asked has changed since; look again"
	case notice.NoAnswer:
		status, said["error"] = http.StatusBadRequest, "that is no answer, or none that the host's owner lets be given from afar"
	case notice.Forbidden:
		status, said["error"] = http.StatusForbidden, "the host's owner does not let you answer that"
	default:
		status, said["error"] = http.StatusServiceUnavailable, "the host cannot be reached now; try again"
	}
	authn.WriteJSON(w, status, said)
}
