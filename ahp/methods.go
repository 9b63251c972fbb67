package ahp

// InitializeResult holds the members of initialize's result that a host-agent reads (AHP,
// common commands).
type InitializeResult struct {
	ProtocolVersion string // chosen by the host; "" when absent

	// ServerInfo is the raw name and version of the host's software, nil when absent.
	// It aliases the result.
	ServerInfo []byte
}

// ReadInitializeResult reads an initialize request's raw result. It returns a
// [*FrameError] for a result that [Members] refuses, and for a field with a wrong type.
func ReadInitializeResult(result []byte) (InitializeResult, error) {
	want := [...]Member{{Name: "protocolVersion"}, {Name: "serverInfo"}}
	if err := Members(result, want[:]); err != nil {
		return InitializeResult{}, err
	}
	version, err := want[0].text()
	if err != nil {
		return InitializeResult{}, err
	}
	return InitializeResult{string(version), want[1].Raw}, nil
}
