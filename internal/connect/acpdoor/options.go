package acpdoor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"ahprelay/internal/acp"
	"ahprelay/internal/connect/client"
)

// Ids and values of options.
const (
	modeOption  = "mode"  // in the host's config; its category may be missing there
	modelOption = "model" // not in the host's config

	hostsModel = "default" // the host's choice of a model
)

// options are the choices for a session.
type options struct {
	properties map[string]property
	values     map[string]json.RawMessage

	model  string // the model chosen for messages; "": the host's choice
	unsent bool   // the choice must be sent with the next message
}

// A property is a member of a session's config.
type property struct {
	Type         string   `json:"type"`
	Title        string   `json:"title"`
	Description  string   `json:"description"`
	Category     string   `json:"category"`
	Enum         []string `json:"enum"`
	Labels       []string `json:"enumLabels"`
	Descriptions []string `json:"enumDescriptions"`
	ReadOnly     bool     `json:"readOnly"`
	Mutable      bool     `json:"sessionMutable"`

	Default json.RawMessage `json:"default"`
}

// offered reports whether editors can offer the property as an option.
func (p *property) offered() bool {
	return p.Mutable && !p.ReadOnly && (p.Type == "boolean" || p.Type == "string" && len(p.Enum) > 0)
}

func (p *property) category(id string) string {
	if p.Category == "" && id == modeOption {
		return acp.SessionConfigOptionCategoryMode
	}
	return p.Category
}

// read reads a session's config, and the model from its latest message.
func (o *options) read(config json.RawMessage, turns []client.Turn) {
	var c struct {
		Schema struct {
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"schema"`
		Values map[string]json.RawMessage `json:"values"`
	}
	_ = json.Unmarshal(config, &c) // a missing config counts as empty
	o.properties, o.values = map[string]property{}, map[string]json.RawMessage{}
	maps.Copy(o.values, c.Values)
	for id, raw := range c.Schema.Properties {
		var p property
		if json.Unmarshal(raw, &p) == nil && p.offered() {
			o.properties[id] = p
		}
	}
	if n := len(turns); n > 0 && turns[n-1].Message.Model != nil && !o.unsent {
		o.model = turns[n-1].Message.Model.ID
	}
}

// takeModel returns the model to send with a message.
func (o *options) takeModel() *client.ModelChoice {
	if o.model == "" {
		return nil
	}
	o.unsent = false
	return &client.ModelChoice{ID: o.model}
}

// mode returns the id of the option with the session's modes, "" if there is none.
func (o *options) mode() string {
	for _, id := range o.ids() {
		if p := o.properties[id]; p.category(id) == acp.SessionConfigOptionCategoryMode && len(p.Enum) > 0 {
			return id
		}
	}
	return ""
}

// order lists the first categories of options in the order in which editors get them; others
// follow.
var order = []string{acp.SessionConfigOptionCategoryMode, acp.SessionConfigOptionCategoryModel, acp.SessionConfigOptionCategoryThoughtLevel}

func (o *options) ids() []string {
	rank := func(id string) int {
		p := o.properties[id]
		if i := slices.Index(order, p.category(id)); i >= 0 {
			return i
		}
		return len(order)
	}
	return slices.SortedFunc(maps.Keys(o.properties), func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
}

func (o *options) value(id string) json.RawMessage {
	if v := o.values[id]; v != nil {
		return v
	}
	p := o.properties[id]
	if p.Default == nil && len(p.Enum) > 0 {
		first, _ := json.Marshal(p.Enum[0]) // a string always marshals
		return first
	}
	return p.Default
}

func (o *options) modes() *acp.SessionModeState {
	id := o.mode()
	if id == "" {
		return nil
	}
	p := o.properties[id]
	state := &acp.SessionModeState{AvailableModes: []acp.SessionMode{}}
	_ = json.Unmarshal(o.value(id), &state.CurrentModeID)
	for _, c := range p.choices() {
		state.AvailableModes = append(state.AvailableModes, acp.SessionMode{ID: c.Value, Name: c.Name, Description: c.Description})
	}
	return state
}

func (p *property) choices() (list []acp.SessionConfigSelectOptionsItem) {
	for i, value := range p.Enum {
		item := acp.SessionConfigSelectOptionsItem{Value: value, Name: value}
		if i < len(p.Labels) {
			item.Name = cmp.Or(p.Labels[i], value)
		}
		if i < len(p.Descriptions) {
			item.Description = p.Descriptions[i]
		}
		list = append(list, item)
	}
	return list
}

func (s *session) configOptions() []acp.SessionConfigOption {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.options.list(s.door, s.provider)
}

// list returns the options for the editor, among them the provider's models.
func (o *options) list(d *Door, provider string) []acp.SessionConfigOption {
	d.mu.Lock()
	booleans := d.can.Session != nil && d.can.Session.ConfigOptions != nil && d.can.Session.ConfigOptions.Boolean != nil
	agents := d.agents
	d.mu.Unlock()
	list := []acp.SessionConfigOption{}
	models := false
	for _, id := range o.ids() {
		p := o.properties[id]
		option := acp.SessionConfigOption{ID: id, Name: cmp.Or(p.Title, id), Description: p.Description, Category: p.category(id), Type: acp.SessionConfigOptionSelect, CurrentValue: o.value(id), Options: p.choices()}
		if len(p.Enum) == 0 {
			if !booleans {
				continue
			}
			option.Type = acp.SessionConfigOptionBoolean
			if option.CurrentValue == nil {
				option.CurrentValue = json.RawMessage("false")
			}
		}
		models = models || option.Category == acp.SessionConfigOptionCategoryModel
		list = append(list, option)
	}
	if models {
		return list
	}
	for _, agent := range agents {
		if agent.Provider != provider || len(agent.Models) == 0 {
			continue
		}
		current, _ := json.Marshal(cmp.Or(o.model, hostsModel)) // a string always marshals
		option := acp.SessionConfigOption{ID: modelOption, Name: "Model", Category: acp.SessionConfigOptionCategoryModel, Type: acp.SessionConfigOptionSelect, CurrentValue: current,
			Options: []acp.SessionConfigSelectOptionsItem{{Value: hostsModel, Name: "The host's choice"}}}
		for _, m := range agent.Models {
			option.Options = append(option.Options, acp.SessionConfigSelectOptionsItem{Value: m.ID, Name: cmp.Or(m.Name, m.ID)})
		}
		list = append(list, option)
	}
	return list
}

// optionsChanged stores new values and sends them to the editor.
func (s *session) optionsChanged(config json.RawMessage) {
	var values map[string]json.RawMessage
	if json.Unmarshal(config, &values) != nil {
		return
	}
	before := string(s.options.value(s.options.mode()))
	maps.Copy(s.options.values, values)
	showOptions(s, before)
}

// showOptions sends the options to the editor. before was the value of the mode.
func showOptions(s *session, before string) {
	if modes := s.options.modes(); modes != nil && string(s.options.value(s.options.mode())) != before {
		s.update(acp.UpdateCurrentModeUpdate, acp.CurrentModeUpdate{CurrentModeID: modes.CurrentModeID})
	}
	s.update(acp.UpdateConfigOptionUpdate, acp.ConfigOptionUpdate{ConfigOptions: s.options.list(s.door, s.provider)})
}

func (s *session) setMode(ctx context.Context, mode string) error {
	s.mu.Lock()
	id := s.options.mode()
	s.mu.Unlock()
	if id == "" {
		return errors.New("the session has no modes")
	}
	value, _ := json.Marshal(mode) // a string always marshals
	return s.setOption(ctx, id, value)
}

func (o *options) chooseModel(id string) {
	if o.model, o.unsent = id, true; id == hostsModel {
		o.model = ""
	}
}

// setOption changes an option. If it is in the host's config, setOption waits until the
// host has confirmed it.
func (s *session) setOption(ctx context.Context, id string, value json.RawMessage) error {
	var text string
	isText := json.Unmarshal(value, &text) == nil
	s.mu.Lock()
	i := slices.IndexFunc(s.options.list(s.door, s.provider), func(o acp.SessionConfigOption) bool { return o.ID == id })
	p, isConfig := s.options.properties[id]
	if i >= 0 && !isConfig {
		s.options.chooseModel(text)
	}
	done := make(chan error, 1)
	fits := i >= 0 && (!isConfig || len(p.Enum) == 0 || isText && slices.Contains(p.Enum, text))
	if fits && isConfig {
		s.changes = append(s.changes, done)
	}
	s.mu.Unlock()
	switch {
	case !fits:
		return &acp.Error{Code: acp.CodeInvalidParams, Message: fmt.Sprintf("the session has no option %q with this value", id)}
	case !isConfig:
		return nil
	}
	c, err := s.door.host(ctx)
	if err == nil {
		err = c.Dispatch(ctx, s.id, map[string]any{"type": "session/configChanged", "config": map[string]json.RawMessage{id: value}})
	}
	if err == nil {
		err = confirmed(ctx, c, done)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = slices.DeleteFunc(s.changes, func(other chan error) bool { return other == done })
	return err
}

// confirmed waits until the host has confirmed or rejected a change, or the connection has ended.
func confirmed(ctx context.Context, c *client.Client, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.Done():
		return fmt.Errorf("the host has not confirmed the change: %w", c.Err())
	}
}

// changed reports the result of the oldest waiting change.
func (s *session) changed(err error) {
	if len(s.changes) > 0 {
		s.changes[0] <- err // its capacity is 1
		s.changes = s.changes[1:]
	}
}
