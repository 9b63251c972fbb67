package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// Ids for options that agents declare in the older forms, as modes and models.
const (
	modeOption  = "mode"
	modelOption = "model"
)

// Categories of options.
const (
	categoryMode  = acp.SessionConfigOptionCategoryMode
	categoryModel = acp.SessionConfigOptionCategoryModel
)

// modelState is the older form of the choice of a model, with the method
// session/set_model.
type modelState struct {
	Available []struct {
		ID          string `json:"modelId"`
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"availableModels"`
	Current string `json:"currentModelId"`
}

// errBypass refuses a mode or command because of [Config.NoBypass].
var errBypass = errors.New("the host's owner has forbidden modes and commands that skip permissions (--no-bypass)")

// bypassPattern matches the names of modes and commands in which an agent no longer
// asks for permission.
var bypassPattern = regexp.MustCompile(`(?i)bypass|yolo|dangerous|full.?access|skip.{0,5}permission|auto.?approve.{0,3}all|allow.?all|trust.?all|never.?ask`)

// bypassText matches the descriptions of such modes.
var bypassText = regexp.MustCompile(`(?i)bypass|auto.?approves? (all|every)|without (asking|any approval)|skips? (all )?permission`)

func isBypass(id, name, description string) bool {
	return bypassPattern.MatchString(id) || bypassPattern.MatchString(name) || bypassText.MatchString(description)
}

// options are a conversation's choices. If an agent declares a choice in two forms, the
// newer form is used.
type options struct {
	modes  *acp.SessionModeState
	models *modelState
	config []acp.SessionConfigOption
}

// set replaces the options with those of an opened session.
func (o *options) set(r opened) { o.modes, o.models, o.config = r.Modes, r.Models, r.ConfigOptions }

func (o *options) setConfig(config []acp.SessionConfigOption) { o.config = config }

// choose records a value that the agent has accepted or set.
func (o *options) choose(id, value string) {
	for i := range o.config {
		if o.config[i].ID == id || id == modeOption && o.config[i].Category == categoryMode {
			o.config[i].CurrentValue, _ = json.Marshal(value) // a string can always be encoded
		}
	}
	switch {
	case id == modeOption && o.modes != nil:
		o.modes.CurrentModeID = value
	case id == modelOption && o.models != nil:
		o.models.Current = value
	}
}

// configFor returns the option of the newer form with this id, or else of this
// category, or nil.
func (o *options) configFor(id, category string) *acp.SessionConfigOption {
	i := slices.IndexFunc(o.config, func(c acp.SessionConfigOption) bool { return c.ID == id })
	if i < 0 && category != "" {
		i = slices.IndexFunc(o.config, func(c acp.SessionConfigOption) bool { return c.Category == category })
	}
	if i < 0 {
		return nil
	}
	return &o.config[i]
}

// list returns the options for the host, with noBypass without those that skip
// permissions.
func (o *options) list(noBypass bool) (list []agenthost.Option) {
	if o.models != nil && o.configFor(modelOption, categoryModel) == nil {
		option := agenthost.Option{ID: modelOption, Name: "Model", Category: categoryModel, Value: o.models.Current}
		for _, m := range o.models.Available {
			option.Choices = append(option.Choices, agenthost.Choice{ID: m.ID, Label: m.Name, Description: m.Description})
		}
		list = append(list, option)
	}
	if o.modes != nil && o.configFor(modeOption, categoryMode) == nil {
		option := agenthost.Option{ID: modeOption, Name: "Mode", Category: categoryMode, Value: o.modes.CurrentModeID}
		for _, m := range o.modes.AvailableModes {
			option.Choices = append(option.Choices, agenthost.Choice{ID: m.ID, Label: m.Name, Description: m.Description, Bypass: isBypass(m.ID, m.Name, m.Description)})
		}
		list = append(list, option)
	}
	for _, c := range o.config {
		list = append(list, configOption(c))
	}
	if noBypass {
		list = slices.DeleteFunc(list, isBypassSwitch)
		for i := range list {
			list[i].Choices = slices.DeleteFunc(list[i].Choices, func(c agenthost.Choice) bool { return c.Bypass })
		}
	}
	return list
}

func configOption(c acp.SessionConfigOption) agenthost.Option {
	option := agenthost.Option{ID: c.ID, Name: c.Name, Description: c.Description, Category: c.Category}
	_ = json.Unmarshal(c.CurrentValue, &option.Value) // without a value, Value is nil
	option.Bypass = isBypassSwitch(option) && len(c.Options) == 0
	for _, item := range c.Options {
		group := []acp.SessionConfigSelectOption{{Value: item.Value, Name: item.Name, Description: item.Description}}
		if item.Options != nil {
			group = item.Options
		}
		for _, choice := range group {
			bypass := c.Category != categoryModel && isBypass(choice.Value, choice.Name, choice.Description)
			option.Choices = append(option.Choices, agenthost.Choice{ID: choice.Value, Label: choice.Name, Description: choice.Description, Bypass: bypass})
		}
	}
	return option
}

// isBypassSwitch reports whether an option is a switch that skips permissions when it
// is on.
func isBypassSwitch(o agenthost.Option) bool {
	return len(o.Choices) == 0 && isBypass(o.ID, o.Name, o.Description)
}

// bypass returns the option whose present value skips permissions, or nil.
func (o *options) bypass() *agenthost.Option {
	for _, option := range o.list(false) {
		if isBypassSwitch(option) && option.Value == true {
			return &option
		}
		for _, choice := range option.Choices {
			if choice.Bypass && choice.ID == option.Value {
				return &option
			}
		}
	}
	return nil
}

// optionsChanged applies a change and reports the options to the host. An agent
// that stays in a forbidden mode is stopped.
func (c *conversation) optionsChanged(change func(*options)) {
	c.mu.Lock()
	change(&c.options)
	leave := c.agent.cfg.NoBypass && c.session != "" && c.options.bypass() != nil // before the session, its agent has no mode
	c.mu.Unlock()
	c.reportOptions()
	if leave {
		go func() {
			if err := c.leaveBypass(c.life); err != nil {
				c.agent.cfg.Log.Error("agent in a forbidden mode stopped", "error", err)
				c.peer.end()
			}
		}()
	}
}

// reportOptions reports the options to the host, and stores them for new conversations.
func (c *conversation) reportOptions() {
	c.reporting.Lock()
	defer c.reporting.Unlock()
	c.mu.Lock()
	list := c.options.list(c.agent.cfg.NoBypass)
	c.mu.Unlock()
	c.chat.SetOptions(list)
	var models []agenthost.AgentModel
	for _, option := range list {
		if option.Category == categoryModel {
			for _, choice := range option.Choices {
				models = append(models, agenthost.AgentModel{ID: choice.ID, Name: choice.Label})
			}
		}
	}
	c.agent.learnOptions(list, models)
}

// learnOptions stores the options for new conversations.
func (a *Agent) learnOptions(list []agenthost.Option, models []agenthost.AgentModel) {
	a.mu.Lock()
	same := slices.Equal(a.info.Models, models) && slices.EqualFunc(a.info.Options, list, func(x, y agenthost.Option) bool {
		return x.ID == y.ID && slices.Equal(x.Choices, y.Choices)
	})
	a.mu.Unlock()
	if !same {
		a.change(func(info *agenthost.AgentInfo) { info.Options, info.Models = list, models })
	}
}

// choose sets the options that a person has chosen, and leaves forbidden modes. A continued
// conversation goes on without a value that the agent no longer accepts, for example because a
// newer version of the agent lacks the model.
func (c *conversation) choose(ctx context.Context) error {
	for _, option := range c.present() {
		value, ok := c.start.Options[option.ID]
		if !ok || value == option.Value {
			continue
		}
		err := c.SetOption(ctx, option.ID, value)
		if err != nil && (c.start.ID == "" || ctx.Err() != nil || errors.Is(err, acp.ErrClosed)) {
			return err
		}
		if err != nil {
			c.agent.cfg.Log.Warn("option of a continued conversation not set", "option", option.ID, "error", err)
		}
	}
	if c.agent.cfg.NoBypass {
		return c.leaveBypass(ctx)
	}
	return nil
}

func (c *conversation) present() []agenthost.Option {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.options.list(false)
}

// leaveBypass leaves a mode that skips permissions.
func (c *conversation) leaveBypass(ctx context.Context) error {
	c.mu.Lock()
	option := c.options.bypass()
	c.mu.Unlock()
	if option == nil {
		return nil
	}
	if isBypassSwitch(*option) {
		return c.SetOption(ctx, option.ID, false)
	}
	for _, choice := range option.Choices {
		if !choice.Bypass {
			return c.SetOption(ctx, option.ID, choice.ID)
		}
	}
	return errBypass
}

// SetOption implements [agenthost.Configurable].
func (c *conversation) SetOption(ctx context.Context, id string, value any) error {
	ctx, cancel := within(ctx, answerTime)
	defer cancel()
	list := c.present()
	i := slices.IndexFunc(list, func(o agenthost.Option) bool { return o.ID == id })
	if i < 0 {
		return fmt.Errorf("the agent has no option %q", id)
	}
	text, isText := value.(string)
	if isBypassSwitch(list[i]) && value != false && c.agent.cfg.NoBypass {
		return errBypass
	}
	if len(list[i].Choices) > 0 {
		j := slices.IndexFunc(list[i].Choices, func(choice agenthost.Choice) bool { return isText && choice.ID == text })
		switch {
		case j < 0:
			return fmt.Errorf("option %s has no choice %v", id, value)
		case list[i].Choices[j].Bypass && c.agent.cfg.NoBypass:
			return errBypass
		}
	}
	c.mu.Lock()
	isConfig, session := c.options.configFor(id, "") != nil, c.session
	c.mu.Unlock()
	chosen := func(json.RawMessage) { c.optionsChanged(func(o *options) { o.choose(id, text) }) }
	switch {
	case isConfig:
		return c.setConfig(ctx, session, id, value)
	case id == modeOption:
		return c.peer.conn.CallThen(ctx, "session/set_mode", acp.SetSessionModeRequest{SessionID: session, ModeID: text}, nil, chosen)
	}
	return c.peer.conn.CallThen(ctx, "session/set_model", struct {
		SessionID string `json:"sessionId"`
		ModelID   string `json:"modelId"`
	}{session, text}, nil, chosen)
}

// setConfig sets an option of the newest form.
func (c *conversation) setConfig(ctx context.Context, session, id string, value any) error {
	r := acp.SetSessionConfigOptionRequest{SessionID: session, ConfigID: id}
	if _, ok := value.(bool); ok {
		r.Type = acp.SetSessionConfigOptionRequestBoolean
	}
	var err error
	if r.Value, err = json.Marshal(value); err != nil {
		return err
	}
	var answer acp.SetSessionConfigOptionResponse
	return c.peer.conn.CallThen(ctx, "session/set_config_option", r, &answer, func(raw json.RawMessage) {
		var result acp.SetSessionConfigOptionResponse
		if acp.Decode(raw, &result) != nil {
			return
		}
		c.optionsChanged(func(o *options) {
			if text, ok := value.(string); ok {
				o.choose(id, text)
			}
			if result.ConfigOptions != nil {
				o.setConfig(result.ConfigOptions)
			}
		})
	})
}
