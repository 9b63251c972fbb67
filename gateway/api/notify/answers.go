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

// People can answer an event without opening a page.
//
//	POST /api/answers/{capability}  {"text"} for a text answer; otherwise no body is needed. A token is optional, and must be the same person's
//	POST /api/answers/{event}       {"host", "option" | "text", "digest"}, with a token; the digest is that of the event in GET /api/events
//	POST /api/letters/{way}         {"host", "letter"}: a device's encrypted answer to a sealed host, which the relay cannot read
//
// A notification contains capabilities. Each permits one answer by one person to one event as
// shown. It is valid for a day, while the notification target and the token that set it are valid for the host.
// The host-agent checks the person's permissions, and ensures that the host receives only one
// answer. The response is {"result": "given"}, or an error with 409 (and "by", if the event was
// answered before), 410 (no longer open), 403, 404 (unknown capability), 400, or 503 (try again).

// A capability is the signed content of an answer link.
type capability struct {
	Tenant  string `json:"t"`
	Host    string `json:"h"`
	Event   string `json:"e"`
	Digest  string `json:"d"`
	Option  string `json:"o,omitempty"` // "" for a text answer
	Subject string `json:"s"`
	Target  string `json:"w"`
	Expires int64  `json:"x"` // Unix time
}

// capabilityTTL is how long a capability is valid.
const capabilityTTL = 24 * time.Hour

// maxCapability is the longest capability in bytes.
const maxCapability = 4 << 10

// Capability returns the capability to choose an option of a job's event, or "" if the
// person may not choose it.
func (a *API) Capability(job *notify.Job, who auth.Client, o notice.Option) string {
	if !mayAnswer(who, job.Tenant, job.Host, &job.Event) {
		return ""
	}
	body, err := json.Marshal(capability{
		Tenant: job.Tenant, Host: job.Host, Event: job.Event.ID, Digest: job.Event.Digest(), Option: o.ID,
		Subject: job.Subject, Target: job.Target, Expires: time.Now().Add(capabilityTTL).Unix(),
	})
	if err != nil {
		return "" // all fields can be encoded
	}
	signed := a.Caller.Keys.Sign(auth.AnswerCapability, body)
	return base64.RawURLEncoding.EncodeToString(body) + "." + base64.RawURLEncoding.EncodeToString(signed.Signature)
}

// mayAnswer reports whether a token permits an answer to an event.
func mayAnswer(who auth.Client, tenant, host string, e *notice.Event) bool {
	needs := auth.AccessTalk
	if e.Kind == notice.Approval {
		needs = auth.AccessApprove
	}
	return notify.MayHear(who, tenant, host, e) && who.Access.Includes(needs) &&
		(len(who.Methods) == 0 || auth.MatchesAny(who.Methods, "dispatchAction"))
}

var errCapability = errors.New("unknown or expired answer link")

// readCapability verifies a capability, and returns its person's current authority.
func (a *API) readCapability(text string) (c capability, who auth.Client, err error) {
	first, second, ok := strings.Cut(text, ".")
	body, err1 := base64.RawURLEncoding.Strict().DecodeString(first)
	signature, err2 := base64.RawURLEncoding.Strict().DecodeString(second)
	genuine := func(key ed25519.PublicKey) bool {
		signed := auth.Signed{Body: body, Key: key, Signature: signature}
		return signed.Check([]ed25519.PublicKey{key}, auth.AnswerCapability) == nil
	}
	if !ok || len(text) > maxCapability || err1 != nil || err2 != nil ||
		!slices.ContainsFunc(a.Caller.Keys.Links().RelayKeys(), genuine) ||
		json.Unmarshal(body, &c) != nil || time.Now().Unix() > c.Expires {
		return c, who, errCapability
	}
	for _, target := range a.notifier.Person(c.Tenant, c.Subject).Targets {
		if target.ID == c.Target {
			who, good, err := a.Standing(target.Who)
			if err != nil || good && who.MayReach(c.Tenant, c.Host) { // the host-agent does not know the person's hosts
				return c, who, err
			}
		}
	}
	return c, who, errCapability
}

// An answerBody is the body of POST /api/answers.
type answerBody struct {
	Host   string `json:"host"`
	Option string `json:"option"`
	Text   string `json:"text"`
	Digest string `json:"digest"` // of the event that the person saw; "": the current event
}

func (a *API) serveAnswer(w http.ResponseWriter, r *http.Request) {
	if a.notifier == nil {
		authn.WriteError(w, http.StatusNotFound, errCapability)
		return
	}
	var body answerBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNotify)).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body: want JSON with host, option and text"))
		return
	}
	byToken := r.Header.Get("Authorization") != ""
	var who auth.Client
	if byToken {
		var ok bool
		if who, ok = a.Caller.Client(w, r); !ok {
			return
		}
	}
	var answer notice.Answer
	var ok bool
	if id := r.PathValue("id"); byToken && !strings.Contains(id, ".") { // an event's id has no dot
		defer a.follow(r.Context(), who.Tenant)()
		answer, ok = a.answerByID(w, who, id, body)
	} else {
		answer, who, ok = a.answerByLink(w, r, who, byToken, id, body)
	}
	if !ok {
		return
	}
	answer.Subject, answer.Token, answer.Access, answer.Channels, answer.Methods = who.Subject, who.ID, string(who.Access), who.Channels, who.Methods
	answer.Remote, answer.Device = a.Caller.Address(r), who.DeviceName
	a.give(r.Context(), w, answer)
}

// answerByID reads an answer with a token to an open question. If ok is false, it has
// responded with an error.
func (a *API) answerByID(w http.ResponseWriter, who auth.Client, id string, body answerBody) (answer notice.Answer, ok bool) {
	e, open := a.Board.Open(who.Tenant, body.Host, id)
	switch {
	case !open || !notify.MayHear(who, who.Tenant, body.Host, &e):
		authn.WriteError(w, http.StatusGone, errors.New("the question is no longer open"))
		return answer, false
	case !mayAnswer(who, who.Tenant, body.Host, &e):
		authn.WriteError(w, http.StatusForbidden, errors.New("this token does not permit this answer"))
		return answer, false
	case body.Digest != "" && body.Digest != e.Digest():
		authn.WriteError(w, http.StatusConflict, errors.New("the question has changed; open it again"))
		return answer, false
	}
	return notice.Answer{Tenant: who.Tenant, Host: body.Host, Event: id, Digest: e.Digest(), Option: body.Option, Text: body.Text}, true
}

// answerByLink reads an answer with a capability, and returns the capability's person. A
// token sent with it proves only the person and the device; the capability decides what
// they may do.
func (a *API) answerByLink(w http.ResponseWriter, r *http.Request, who auth.Client, byToken bool, id string, body answerBody) (answer notice.Answer, by auth.Client, ok bool) {
	c, holder, err := a.readCapability(id)
	switch {
	case err != nil && !errors.Is(err, errCapability): // the person's authority is unknown at present
		authn.WriteError(w, http.StatusServiceUnavailable, err)
		return answer, who, false
	case err != nil:
		if a.Caller.TooManyFailures(w, r) {
			return answer, who, false
		}
		a.Caller.Refuse("answer", "", audit.Line{Address: a.Caller.Address(r), Reason: err.Error()})
		authn.WriteError(w, http.StatusNotFound, err)
		return answer, who, false
	case byToken && (who.Tenant != c.Tenant || who.Subject != c.Subject):
		authn.WriteError(w, http.StatusForbidden, errors.New("this answer link belongs to another person"))
		return answer, who, false
	}
	holder.DeviceName = who.DeviceName
	who = holder
	answer = notice.Answer{Tenant: c.Tenant, Host: c.Host, Event: c.Event, Digest: c.Digest, Option: c.Option}
	if c.Option == "" {
		answer.Text = body.Text
	}
	return answer, who, true
}

// A letterBody is the body of POST /api/letters.
type letterBody struct {
	Host   string `json:"host"`
	Letter []byte `json:"letter"`
}

// maxLetter is the longest encrypted answer in bytes.
const maxLetter = 16 << 10

// serveLetter forwards a device's encrypted answer to a sealed host, which alone can judge
// it. The relay checks only that the ID in the path is a browser's notification target, and
// that the target's token permits access to the host.
func (a *API) serveLetter(w http.ResponseWriter, r *http.Request) {
	var body letterBody
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNotify)).Decode(&body); err != nil || len(body.Letter) == 0 || len(body.Letter) > maxLetter {
		authn.WriteError(w, http.StatusBadRequest, errors.New("body: want JSON with host and letter"))
		return
	}
	var who auth.Client
	often, known := false, false
	if a.notifier != nil {
		who, often, known = notify.Letterbox(a.notifier, r.PathValue("way"))
	}
	switch {
	case !known || !who.MayReach(who.Tenant, body.Host):
		if !a.Caller.TooManyFailures(w, r) {
			a.Caller.Refuse("answer", "", audit.Line{Address: a.Caller.Address(r), Reason: errCapability.Error()})
			authn.WriteError(w, http.StatusNotFound, errCapability)
		}
		return
	case often:
		refuseNotify(w, notify.ErrTooOften)
		return
	}
	a.give(r.Context(), w, notice.Answer{
		Tenant: who.Tenant, Host: body.Host, Letter: body.Letter,
		Subject: who.Subject, Token: who.ID, Access: string(who.Access), Remote: a.Caller.Address(r),
	})
}

// give sends an answer to the host, and responds with the result.
func (a *API) give(ctx context.Context, w http.ResponseWriter, answer notice.Answer) {
	out, err := a.answer(ctx, answer)
	if err != nil {
		authn.WriteError(w, http.StatusServiceUnavailable, err)
		return
	}
	reply := map[string]string{"result": string(out.Result)}
	if len(out.Proof) > 0 {
		reply["proof"] = base64.RawURLEncoding.EncodeToString(out.Proof)
	}
	status := http.StatusOK
	switch out.Result {
	case notice.Given:
	case notice.Answered:
		status, reply["error"] = http.StatusConflict, "already answered"
		if out.By != "" {
			reply["error"], reply["by"] = "already answered by "+out.By, out.By
		}
	case notice.Unknown:
		status, reply["error"] = http.StatusGone, "the question is no longer open: it was answered, or the agent went on"
	case notice.Changed:
		status, reply["error"] = http.StatusConflict, "the question has changed; open it again"
	case notice.NoAnswer:
		status, reply["error"] = http.StatusBadRequest, "the answer does not fit the question, or the host's owner does not permit it from a notification"
	case notice.Forbidden:
		status, reply["error"] = http.StatusForbidden, "the host's owner does not permit you to answer this"
	default:
		status, reply["error"] = http.StatusServiceUnavailable, "the host is unreachable; try again"
	}
	authn.WriteJSON(w, status, reply)
}
