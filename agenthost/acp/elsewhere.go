package acp

import (
	"context"
	"regexp"
	"slices"
	"time"

	"ahprelay/agenthost"
)

// Agents do not report that a conversation is open in their own terminal, too. Their
// lists of conversations have the time of the latest change: a change between two
// prompts was made in a different place. The process has not seen it, so its next prompt
// would begin a second branch. In a new process nothing is compared: some agents write
// when they end, and a new process reads everything.
const (
	// lateTime is how long an agent may write behind the end of its turn.
	lateTime = 15 * time.Second

	// lookTime bounds the wait for the agent's list.
	lookTime = 2 * time.Second
)

// busyPattern matches errors of agents that do not share a conversation.
var busyPattern = regexp.MustCompile(`(?i)already (open|running|active|in use)|\b(locked|in use|opened) (by|in|elsewhere)\b|another (process|client|instance)`)

// changedElsewhere reports whether a conversation has changed since it rested. An agent
// that cannot continue a conversation, or does not tell, has no such change.
func (p *peer) changedElsewhere(ctx context.Context, folder, id string, rested time.Time) bool {
	if rested.IsZero() || p.can.SessionCapabilities.Resume == nil && !p.can.LoadSession {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	list, _ := p.list(ctx, folder) // without a list nothing is known
	return slices.ContainsFunc(list, func(past agenthost.Past) bool {
		return past.ID == id && past.Modified.After(rested.Add(lateTime))
	})
}
