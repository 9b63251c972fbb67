package acpdoor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ahprelay/internal/acp"
	"ahprelay/internal/clock"
	"ahprelay/internal/connect/client"
)

// A prompt is a message from the editor, until its turn has ended.
type prompt struct {
	request *acp.Request
	turn    string // id of the turn; "" while the message is queued
	queued  string // id of the queued message
	text    string // of the message, once it was sent
	began   time.Time
	usage   *acp.Usage

	waits     bool // for the connection to the host
	sent      bool // the message was sent, or could not be
	cancelled bool
	behind    error // error of the turn before it, because of which the message is removed
}

func (d *Door) prompt(r *acp.Request) {
	var p acp.PromptRequest
	if acp.Decode(r.Params, &p) != nil {
		r.Reply(nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the parameters are not readable"})
		return
	}
	s := d.session(p.SessionID)
	if s == nil {
		r.Reply(nil, errNoSession)
		return
	}
	id := rand.Text()
	made := &prompt{request: r, began: time.Now(), waits: true}
	s.mu.Lock()
	running := s.turn != nil || len(s.prompts) > 0
	if made.turn = id; running {
		made.turn, made.queued = "", id
	}
	s.prompts = append(s.prompts, made) // in the order of the requests
	before, sent := s.sending, make(chan struct{})
	s.sending = sent
	s.mu.Unlock()
	d.spawn(func() {
		defer close(sent)
		if before != nil {
			<-before
		}
		ctx, cancel := context.WithTimeout(d.life, callTime)
		defer cancel()
		c, err := d.host(ctx)
		if err == nil {
			message := s.message(ctx, p.Prompt)
			s.mu.Lock()
			made.text, made.waits = message.Text, false
			gone := !slices.Contains(s.prompts, made)
			if !gone {
				message.Model = s.options.takeModel()
			}
			s.mu.Unlock()
			if gone {
				return // cancelled, or its session was left
			}
			err = c.Say(ctx, s.channel(), id, message, running)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		made.sent = true
		if err != nil {
			s.finish(made, ending{err: err})
		} else if made.cancelled {
			d.spawn(func() { sendCancels(s) })
		}
	})
}

func (s *session) channel() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chat
}

// finish removes and answers a prompt, if it was not removed before.
func (s *session) finish(p *prompt, end ending) {
	if p.leave(s) {
		p.reply(end)
	}
}

// lost is the end of a prompt that is missing in the chat after an interruption.
func (p *prompt) lost() ending {
	if p.cancelled {
		return p.removed()
	}
	return ending{err: errors.New("the message was lost in an interruption: send it again")}
}

// removed is the end of a prompt whose queued message was removed.
func (p *prompt) removed() ending {
	if p.behind != nil {
		return ending{err: fmt.Errorf("the turn before this message has failed, so the agent has not got it (%w); send it again", p.behind)}
	}
	return ending{reason: acp.StopReasonCancelled}
}

// leave removes the prompt from its session. It returns false if it was removed before.
func (p *prompt) leave(s *session) bool {
	i := slices.Index(s.prompts, p)
	if i >= 0 {
		s.prompts = slices.Delete(s.prompts, i, i+1)
	}
	return i >= 0
}

func (p *prompt) reply(end ending) {
	if end.err != nil {
		p.request.Reply(nil, &acp.Error{Code: acp.CodeInternal, Message: end.err.Error()})
		return
	}
	p.request.Reply(acp.PromptResponse{StopReason: end.reason, Usage: p.usage}, nil)
}

// cancel ends the editor's turns and removes its queued messages. Prompts that the editor sends later go on.
func (s *session) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Clone(s.prompts) {
		if p.cancelled = true; p.waits {
			s.finish(p, ending{reason: acp.StopReasonCancelled})
		}
	}
	s.door.spawn(func() { sendCancels(s) })
}

// sendCancels sends the cancellation of each prompt that was sent to the host, and cancelled. Without a connection, sync
// calls it again.
func sendCancels(s *session) {
	s.mu.Lock()
	chat := s.chat
	var actions []map[string]any // removals come first, because the end of a turn starts the next queued message
	var removed []*prompt
	for _, p := range s.prompts {
		switch {
		case !p.sent || !p.cancelled:
		case p.queued != "":
			actions = slices.Insert(actions, 0, map[string]any{"type": "chat/pendingMessageRemoved", "kind": "queued", "id": p.queued})
			removed = append(removed, p)
		default:
			actions = append(actions, map[string]any{"type": "chat/turnCancelled", "turnId": p.turn, "duration": time.Since(p.began).Milliseconds()})
		}
	}
	s.mu.Unlock()
	c := s.client()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	for _, action := range actions {
		if err := c.Dispatch(ctx, chat, action); err != nil {
			s.door.cfg.Log.Warn("cancellation not sent", "error", err)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range removed {
		if p.queued == "" { // its turn has begun meanwhile
			turn := p.turn
			s.door.spawn(func() { cancelLate(s, turn) })
			continue
		}
		s.dropped = append(s.dropped, p.queued)
		s.finish(p, p.removed())
	}
	s.dropped = s.dropped[max(0, len(s.dropped)-maxSessions):]
}

// removeBehind removes the editor's queued messages after a turn that has failed, unless another turn begins soon. A host may let
// these messages wait until a later turn has succeeded, and the editor would wait for their answers.
func removeBehind(s *session, turn string, why error) {
	if !clock.Sleep(s.door.life, queueTime) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != nil || s.last != turn {
		return
	}
	for _, p := range s.prompts {
		if p.queued != "" && !p.cancelled {
			p.cancelled, p.behind = true, why
		}
	}
	s.door.spawn(func() { sendCancels(s) })
}

// cancelLate ends a turn that the host has begun with a queued message before it got the message's removal.
func cancelLate(s *session, turn string) {
	ctx, cancel := context.WithTimeout(s.door.life, callTime)
	defer cancel()
	if c := s.client(); c != nil {
		_ = c.Dispatch(ctx, s.channel(), map[string]any{"type": "chat/turnCancelled", "turnId": turn, "duration": 0}) // after an interruption, the turn goes on
	}
}

// message translates a prompt, without the model. For a resource or link between other parts, it inserts
// "@" and the label.
func (s *session) message(ctx context.Context, prompt []acp.ContentBlock) client.Message {
	var m client.Message
	var text strings.Builder
	for i, b := range prompt {
		if b.Type == acp.ContentBlockText {
			text.WriteString(b.Text)
			continue
		}
		a := s.attachment(ctx, b)
		m.Attachments = append(m.Attachments, a)
		if i > 0 && i < len(prompt)-1 && (b.Type == acp.ContentBlockResource || b.Type == acp.ContentBlockResourceLink) {
			text.WriteString("@" + a.Label)
		}
	}
	m.Text = text.String()
	return m
}

// attachment translates a part of a prompt.
func (s *session) attachment(ctx context.Context, b acp.ContentBlock) client.Attachment {
	a := client.Attachment{Type: "embeddedResource", ContentType: b.MimeType}
	switch b.Type {
	case acp.ContentBlockResource:
		r := b.Resource
		a.Label, a.URI, a.ContentType = cmp.Or(lastName(r.URI), "attachment"), "", cmp.Or(r.MimeType, "text/plain")
		if a.Data = []byte(r.Text); r.Blob != "" {
			a.Data, _ = base64.StdEncoding.DecodeString(r.Blob) // unreadable data is left out
		}
	case acp.ContentBlockResourceLink:
		a.Label = cmp.Or(b.Name, b.Title, lastName(b.URI), b.URI)
		if text, err := s.editorFile(ctx, b.URI); err == nil {
			a.ContentType, a.Data = cmp.Or(b.MimeType, "text/plain"), []byte(text)
		} else {
			a.Type, a.URI = "resource", b.URI
		}
	default: // image, audio
		kind, _, _ := strings.Cut(b.MimeType, "/")
		a.Label = cmp.Or(lastName(b.URI), kind, "attachment")
		a.Data, _ = base64.StdEncoding.DecodeString(b.Data)
	}
	return a
}

// errNotRead reports that the editor does not provide a file, or that the file is too long.
var errNotRead = errors.New("the editor does not serve this file")

// editorFile reads a file through the editor, including unsaved changes.
func (s *session) editorFile(ctx context.Context, uri string) (string, error) {
	d := s.door
	d.mu.Lock()
	can := d.can.Fs.ReadTextFile
	d.mu.Unlock()
	path := filePath(uri)
	if !can || path == "" {
		return "", errNotRead
	}
	var response acp.ReadTextFileResponse
	if err := d.conn.Call(ctx, "fs/read_text_file", acp.ReadTextFileRequest{SessionID: s.id, Path: path}, &response); err != nil {
		return "", err
	}
	if len(response.Content) > maxFile {
		return "", errNotRead
	}
	return response.Content, nil
}

// blocks is the inverse of message, for messages from other clients and
// earlier ones.
func blocks(m *client.Message) []acp.ContentBlock {
	var list []acp.ContentBlock
	if m.Text != "" || len(m.Attachments) == 0 {
		list = append(list, acp.ContentBlock{Type: acp.ContentBlockText, Text: m.Text})
	}
	for _, a := range m.Attachments {
		kind, _, _ := strings.Cut(a.ContentType, "/")
		data := base64.StdEncoding.EncodeToString(a.Data)
		switch {
		case a.URI != "":
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockResourceLink, Name: cmp.Or(a.Label, a.URI), URI: a.URI, MimeType: a.ContentType})
		case len(a.Data) == 0:
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockText, Text: "(" + a.Label + ")"})
		case kind == "image":
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockImage, MimeType: a.ContentType, Data: data})
		case kind == "audio":
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockAudio, MimeType: a.ContentType, Data: data})
		default:
			r := acp.EmbeddedResourceResource{URI: "attachment:///" + a.Label, MimeType: a.ContentType, Blob: data}
			if kind == "text" && utf8.Valid(a.Data) {
				r.Text, r.Blob = string(a.Data), ""
			}
			list = append(list, acp.ContentBlock{Type: acp.ContentBlockResource, Resource: r})
		}
	}
	return list
}
