package notify

import (
	"context"
	"sync"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway/authn"
	"ahprelay/gateway/notify"
)

// Config configures an [API].
type Config struct {
	Caller   *authn.Checker
	Board    *notify.Board // the events
	Instance string        // names this relay process

	// Standing returns the current authority for the token that set a target, and whether
	// that token is still valid. An error means that this is unknown at present.
	Standing func(who auth.Client) (auth.Client, bool, error)

	Life context.Context // ends with the server
}

// An API serves events, notification settings and answers.
type API struct {
	Config
	streams streams
	over    chan struct{} // closed to end the event streams
	ending  sync.Once     // closes over once

	notifier *notify.Notifier // nil without notifications
	answer   func(context.Context, notice.Answer) (notice.Outcome, error)
	follow   func(ctx context.Context, tenant string) (release func())
}

// New returns an API without notifications. Start adds them.
func New(cfg Config) *API {
	return &API{Config: cfg, streams: streams{of: map[[2]string]int{}}, over: make(chan struct{})}
}

// LearnURL reports a base URL at which an owner's device has reached this relay.
func (a *API) LearnURL(address string) {
	if a.notifier != nil {
		a.notifier.LearnURL(address)
	}
}

// Start enables notifications and answers. The caller calls it before the first request.
// follow requests a tenant's open events from other relays until release is called.
func (a *API) Start(notifier *notify.Notifier, answer func(context.Context, notice.Answer) (notice.Outcome, error), follow func(ctx context.Context, tenant string) (release func())) {
	a.notifier, a.answer, a.follow = notifier, answer, follow
}
