package acpdoor

import (
	"context"
	"encoding/json"

	"ahprelay/internal/acp"
)

// Flush implements [acp.Handler].
func (d *Door) Flush() {}

// Notify implements [acp.Handler].
func (d *Door) Notify(method string, params json.RawMessage) {
	var p acp.CancelNotification
	if method != "session/cancel" || acp.Decode(params, &p) != nil {
		return
	}
	if s := d.session(p.SessionID); s != nil {
		s.cancel()
	}
}

// Request implements [acp.Handler].
func (d *Door) Request(r *acp.Request) {
	if r.Method == "session/prompt" {
		d.prompt(r)
		return
	}
	d.spawn(func() {
		result, err := d.answer(r)
		if err != nil {
			d.cfg.Log.Debug("request failed", "method", r.Method, "error", err)
		}
		if result != answered || err != nil {
			r.Reply(result, err)
		}
	})
}

// answer answers a request of the editor other than session/prompt. Each method has its
// branch.
func (d *Door) answer(r *acp.Request) (any, error) {
	if r.Method == "initialize" {
		return d.initialize(r.Params)
	}
	var p params
	if acp.Decode(r.Params, &p) != nil {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the parameters are not readable"}
	}
	ctx, cancel := context.WithTimeout(d.life, callTime)
	defer cancel()
	switch r.Method {
	case "authenticate":
		return struct{}{}, nil
	case "session/new":
		return d.create(ctx, r, p)
	case "session/load":
		return d.open(ctx, r, p.SessionID, showAll)
	case "session/resume":
		return d.open(ctx, r, p.SessionID, showLive)
	case "session/list":
		return d.list(ctx, p.Cwd)
	}
	s := d.session(p.SessionID)
	if s == nil {
		if r.Method == "session/close" || r.Method == "session/set_mode" || r.Method == "session/set_config_option" {
			return nil, errNoSession
		}
		return nil, &acp.Error{Code: acp.CodeMethodNotFound, Message: "this agent does not have the method"}
	}
	switch r.Method {
	case "session/close":
		return struct{}{}, s.close(ctx)
	case "session/set_mode":
		return struct{}{}, s.setMode(ctx, p.ModeID)
	case "session/set_config_option":
		err := s.setOption(ctx, p.ConfigID, p.Value)
		list := s.configOptions()
		for i := range list {
			if list[i].ID == p.ConfigID {
				list[i].CurrentValue = p.Value // the host may repeat previous values before this one
			}
		}
		return acp.SetSessionConfigOptionResponse{ConfigOptions: list}, err
	}
	return nil, &acp.Error{Code: acp.CodeMethodNotFound, Message: "this agent does not have the method"}
}

func (d *Door) initialize(raw json.RawMessage) (any, error) {
	var p acp.InitializeRequest
	if acp.Decode(raw, &p) != nil {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "the parameters are not readable"}
	}
	if p.ClientInfo != nil && p.ClientInfo.Name != "" {
		for _, relay := range d.cfg.Relays.All() {
			relay.ForProgram("acp: " + p.ClientInfo.Name) // in the relay's audit
		}
	}
	d.mu.Lock()
	d.can = p.ClientCapabilities
	_ = acp.Decode(p.ClientCapabilities.Meta, &d.shows) // most editors have none
	d.mu.Unlock()
	return acp.InitializeResponse{
		ProtocolVersion: 1,
		AgentInfo:       &acp.Implementation{Name: "ahp-connect", Title: d.cfg.Host, Version: d.cfg.Version},
		AgentCapabilities: acp.AgentCapabilities{
			LoadSession:        true,
			PromptCapabilities: acp.PromptCapabilities{Image: true, EmbeddedContext: true},
			SessionCapabilities: acp.SessionCapabilities{
				List: &acp.Capability{}, Resume: &acp.Capability{}, Close: &acp.Capability{},
			},
		},
	}, nil
}

// list lists the host's sessions. With cwd, it lists those in cwd or, if set, --folder.
func (d *Door) list(ctx context.Context, cwd string) (any, error) {
	c, err := d.host(ctx)
	if err != nil {
		return nil, err
	}
	all, err := c.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	if cwd != "" && d.cfg.Folder != "" {
		cwd = d.cfg.Folder
	}
	response := acp.ListSessionsResponse{Sessions: []acp.SessionInfo{}}
	for _, s := range all {
		info := acp.SessionInfo{SessionID: s.Session, Title: s.Title, UpdatedAt: s.Modified, Cwd: "/"}
		if len(s.Folders) > 0 {
			if path := filePath(s.Folders[0]); path != "" {
				info.Cwd = path
			}
		}
		if cwd == "" || cwd == info.Cwd {
			response.Sessions = append(response.Sessions, info)
		}
	}
	return response, nil
}
