package acp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"ahprelay/internal/acp"
)

// version is the version of the protocol that this client offers. An agent answers with
// its own: a newer agent with this one, if it still speaks it.
const version = 1

// codeVersion is the error with which agents of version 2 refuse a client.
const codeVersion = -32022

// wrongVersion returns the error for an agent that speaks other versions only, nil for
// other answers to initialize.
func wrongVersion(r acp.InitializeResponse, err error) error {
	theirs := r.ProtocolVersion
	var refused *acp.Error
	switch {
	case err == nil && theirs == version:
		return nil
	case err == nil:
	case errors.As(err, &refused) && refused.Code == codeVersion:
		var data struct {
			Supported []int64 `json:"supported"`
		}
		_ = acp.Decode(refused.Data, &data) // the least that refuses version 1 is 2
		theirs = version + 1
		if len(data.Supported) > 0 {
			theirs = cmp.Or(slices.Min(data.Supported), theirs)
		}
	default:
		return nil
	}
	if theirs < version {
		return fmt.Errorf("the agent speaks version %d of the Agent Client Protocol, and host-agent version %d: install a newer version of the agent", theirs, version)
	}
	return fmt.Errorf("the agent speaks version %d of the Agent Client Protocol, and host-agent version %d: install a newer host-agent, or an older version of the agent", theirs, version)
}
