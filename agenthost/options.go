package agenthost

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"

	"ahprelay/ahp"
)

// permitted removes the switches and choices that skip permissions if the host forbids them.
func (ss *sessionTable) permitted(options []Option) []Option {
	if !ss.host.cfg.NoBypass {
		return options
	}
	options = slices.DeleteFunc(slices.Clone(options), func(o Option) bool { return o.Bypass })
	for i := range options {
		options[i].Choices = slices.DeleteFunc(slices.Clone(options[i].Choices), func(c Choice) bool { return c.Bypass })
	}
	return options
}

// learnOptionsLocked stores the options of the latest conversation for new sessions,
// without values that skip permissions.
func (p *provider) learnOptionsLocked(h *Host, options []Option) {
	before := p.describeLocked()
	p.options = slices.Clone(options)
	for i, o := range options {
		if o.skips() {
			p.options[i].Value = nil
		}
	}
	if now := p.describeLocked(); !slices.Equal(before.Models, now.Models) {
		h.sessions.agentsChangedLocked()
	}
}

// schemaOf returns a JSON schema for options, with their values. properties and values,
// if not nil, are those of further options.
func schemaOf(options []Option, properties, values map[string]any) Schema {
	if properties == nil {
		properties, values = map[string]any{}, map[string]any{}
	}
	for _, o := range options {
		p := map[string]any{"type": "string", "title": o.Name, "sessionMutable": true}
		if o.Description != "" {
			p["description"] = o.Description
		}
		if o.Category != "" {
			p["category"] = o.Category
		}
		if len(o.Choices) == 0 {
			p["type"] = "boolean"
			if o.Bypass {
				p["bypass"] = []bool{true}
			}
		} else {
			o.describeChoices(p)
		}
		if o.Value != nil {
			p["default"] = o.Value
			values[o.ID] = o.Value
		}
		properties[o.ID] = p
	}
	return Schema{Schema: encode(map[string]any{"type": "object", "properties": properties}), Values: encode(values)}
}

func (o Option) describeChoices(p map[string]any) {
	var ids, labels, descriptions, bypass []string
	for _, c := range o.Choices {
		ids, labels, descriptions = append(ids, c.ID), append(labels, c.Label), append(descriptions, c.Description)
		if c.Bypass {
			bypass = append(bypass, c.ID)
		}
	}
	p["enum"], p["enumLabels"], p["enumDescriptions"] = ids, labels, descriptions
	if bypass != nil {
		p["bypass"] = bypass // ids of the choices that skip permissions
	}
}

// config returns the session's options, or nil if there are none.
func (s *session) config() *Schema {
	st := s.chat.seat
	if script := s.provider.info.Scripted; script != nil {
		if len(s.directories) == 0 {
			return nil
		}
		return &script.Config
	}
	options := st.optionsLocked()
	if len(options) == 0 {
		return nil
	}
	return new(schemaOf(options, nil, nil))
}

// optionsLocked returns the conversation's options. Before the conversation opens,
// these are the options known so far; the agent gets the chosen values at the
// opening.
func (st *seat) optionsLocked() []Option {
	if st.options != nil {
		return st.options
	}
	options := slices.Clone(st.provider.startOptions(st.host))
	for _, had := range st.kept {
		if st.host.cfg.NoBypass && had.Bypass {
			continue
		}
		if st.host.cfg.NoBypass && had.skips() {
			had.Value = nil // the agent is switched to a different value
		}
		options = slices.DeleteFunc(options, func(o Option) bool { return o.ID == had.ID })
		options = append(options, had)
	}
	return withValues(st.host.sessions.permitted(options), st.chosen)
}

// keptOptions returns the options to store. The list of models is left out because it
// is long.
func (st *seat) keptOptions() []Option {
	if st.options == nil {
		return st.kept
	}
	return slices.DeleteFunc(slices.Clone(st.options), func(o Option) bool { return o.Category == "model" })
}

// skips reports whether the option's value skips permissions.
func (o Option) skips() bool {
	return o.Bypass && o.Value == true || slices.ContainsFunc(o.Choices, func(c Choice) bool { return c.Bypass && o.Value == c.ID })
}

func (p *provider) startOptions(h *Host) []Option {
	if p.options != nil {
		return p.options
	}
	return h.sessions.permitted(p.info.Options)
}

func withValues(options []Option, chosen map[string]any) []Option {
	options = slices.Clone(options)
	for i, o := range options {
		if v, ok := chosen[o.ID]; ok && o.accepts(v) {
			options[i].Value = v
		}
	}
	return options
}

// accepts reports whether an option can have this value.
func (o Option) accepts(value any) bool {
	if len(o.Choices) == 0 {
		_, ok := value.(bool)
		return ok
	}
	return slices.ContainsFunc(o.Choices, func(c Choice) bool { return c.ID == value })
}

// configChangedLocked publishes the values of the session's options.
func (s *session) configChangedLocked() {
	config := s.config()
	if config == nil {
		return
	}
	s.host.emitLocked(s.uri, struct {
		Type   string          `json:"type"`
		Config json.RawMessage `json:"config"`
	}{"session/configChanged", config.Values})
}

// clientConfigLocked handles a client's session/configChanged. The agent decides: if
// it refuses a value, the previous value is published again.
func (s *session) clientConfigLocked(env envelope) {
	var a struct {
		Config map[string]any `json:"config"`
	}
	h, st := s.host, s.chat.seat
	if json.Unmarshal(env.action, &a) != nil {
		return
	}
	options := st.optionsLocked()
	for id, value := range a.Config {
		i := slices.IndexFunc(options, func(o Option) bool { return o.ID == id })
		if i < 0 || !options[i].accepts(value) {
			env.rejected = "Not an option of this session: " + id
			h.publishLocked(env, nil)
			return
		}
	}
	maps.Copy(st.chosen, a.Config)
	if st.conv == nil && st.options != nil { // the conversation gets them when it opens
		st.options = withValues(st.options, a.Config)
	}
	s.saveLocked()
	h.publishLocked(env, nil)
	if st.conv != nil {
		conv := st.conv
		st.used = true
		h.goLocked(func() { st.setOptions(conv, a.Config) })
	}
}

func (st *seat) setOptions(conv Conversation, values map[string]any) {
	config, ok := conv.(Configurable)
	ctx, cancel := context.WithTimeout(st.host.ctx, CancelGrace)
	defer cancel()
	for _, id := range slices.Sorted(maps.Keys(values)) {
		if ok && config.SetOption(ctx, id, values[id]) == nil {
			continue
		}
		st.handle.update(func(ch *chat, _ *Host) {
			delete(st.chosen, id)
			ch.session.configChangedLocked()
		})
	}
}

type completionsParams struct {
	Channel string `json:"channel"`
	Text    string `json:"text"`
	Offset  int    `json:"offset"`
}

// completionsLocked answers completions: slash commands at the beginning of a message.
func (ss *sessionTable) completionsLocked(_ *conn, params completionsParams) (any, error) {
	ch := ss.host.chats[params.Channel]
	units := utf16.Encode([]rune(params.Text))
	if ch == nil || params.Offset < 0 || params.Offset > len(units) {
		return json.RawMessage(`{"items":[]}`), nil
	}
	typed, ok := strings.CutPrefix(string(utf16.Decode(units[:params.Offset])), "/")
	items := []any{}
	for _, c := range ch.seat.commands {
		if ok && !strings.Contains(typed, " ") && strings.HasPrefix(c.Name, typed) {
			items = append(items, c.completion(params.Offset))
		}
	}
	return struct {
		Items []any `json:"items"`
	}{items}, nil
}

func (c Command) completion(end int) any {
	return map[string]any{
		"insertText": "/" + c.Name + " ", "rangeStart": 0, "rangeEnd": end,
		"attachment": map[string]any{"type": "simple", "label": "/" + c.Name, "_meta": map[string]string{"description": c.Description, "hint": c.Hint}},
	}
}

// optionsOf returns the chosen options of a new session, without unknown ones. It
// returns an error for a wrong value of a known option.
func (p *provider) optionsOf(h *Host, config map[string]any) (map[string]any, error) {
	chosen := map[string]any{}
	options := p.startOptions(h)
	if len(options) == 0 { // none are known before the first conversation; the agent checks the values
		maps.Copy(chosen, config)
	}
	for id, value := range config {
		for _, o := range options {
			if o.ID == id && !o.accepts(value) {
				return nil, fail(ahp.CodeInvalidParams, "Not a value of %s: %v", id, value)
			}
			if o.ID == id {
				chosen[id] = value
			}
		}
	}
	return chosen, nil
}
