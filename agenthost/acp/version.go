package acp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"ahprelay/internal/acp"
)

// version is the protocol version that this client offers. A newer agent answers with
// the same version if it supports it.
const version = 1

// codeVersion is the error code with which agents of version 2 refuse a client of
// version 1.
const codeVersion = -32022

// wrongVersion returns an error if the agent supports other versions only, and nil
// otherwise.
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
		_ = acp.Decode(refused.Data, &data) // version 2 is the first that refuses version 1
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
