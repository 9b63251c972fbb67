package notify

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
)

// A Message is a notification's content.
type Message struct {
	ID        string      `json:"id"`
	Kind      notice.Kind `json:"kind"`
	Host      string      `json:"host,omitempty"`
	Session   string      `json:"session,omitempty"`
	Chat      string      `json:"chat,omitempty"`  // of a question
	Title     string      `json:"title,omitempty"` // only with details, like Text and Detail
	Text      string      `json:"text,omitempty"`
	Detail    string      `json:"detail,omitempty"`
	Risky     bool        `json:"risky,omitempty"`
	At        time.Time   `json:"at"`
	URL       string      `json:"url,omitempty"`       // the console's page of the session
	Withdrawn bool        `json:"withdrawn,omitempty"` // the event is no longer open
	Answers   []Answer    `json:"answers,omitempty"`
	Says      string      `json:"says"` // one line that describes the event
}

// An Answer is a choice in a message. It can be given once, with a POST to the URL.
type Answer struct {
	Label string `json:"label"`
	Deny  bool   `json:"deny,omitempty"`
	Text  bool   `json:"text,omitempty"` // requires a body {"text": "…"}
	URL   string `json:"url"`            // only the path if the relay has no public URL
}

func (n *Notifier) message(job *Job, t *Target, who auth.Client) Message {
	e := &job.Event
	m := Message{ID: e.ID, Kind: e.Kind, Host: job.Host, Session: e.Session, Chat: e.Chat, At: e.At, Withdrawn: job.Withdrawn, Risky: e.Risky}
	public := n.public.get()
	if public != "" {
		m.URL = public + "/#" + url.Values{"host": {job.Host}, "session": {e.Session}}.Encode()
	}
	if t.Details {
		m.Title, m.Text, m.Detail = e.Title, e.Text, e.Detail
	}
	m.Says = notice.Line(m.Title, job.Host, e.Kind)
	if e.Kind == notice.Test {
		m.Says, m.Text, m.URL = notice.Line("", "AHP relay", e.Kind), e.Text, public
	}
	// A message without details does not show the tool call, so it offers to refuse the call,
	// but not to permit it.
	form, options := e.FromAfar() // without options that old host-agents report but relays must not offer
	if form == notice.Text {
		options = append(slices.Clone(options), notice.Option{Label: "Reply"})
	}
	for _, o := range options {
		if job.Withdrawn || form == notice.NoForm || n.cfg.Capability == nil || !t.Details && !o.Deny {
			continue
		}
		if capability := n.cfg.Capability(job, who, o); capability != "" {
			m.Answers = append(m.Answers, Answer{o.Label, o.Deny, o.ID == "", public + "/api/answers/" + capability})
		}
	}
	return m
}

// body returns the text below the message's first line.
func (m *Message) body() string {
	text := m.Text
	if m.Detail != "" {
		text += "\n" + m.Detail
	}
	if m.Risky {
		text += "\nThe host does not consider it safe."
	}
	return strings.TrimSpace(text)
}
