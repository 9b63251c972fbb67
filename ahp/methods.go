package ahp

// InitializeParams holds initialize's params, as far as a relay reads them. With this
// request a client opens a connection (AHP, common commands).
type InitializeParams struct {
	ClientID         string   // "" when absent
	ProtocolVersions []string // in the client's order of preference

	// Capabilities is the raw capabilities object, nil when absent. It aliases the
	// params.
	Capabilities []byte
}

// ReadInitializeParams reads an initialize request's raw params. It returns a
// [*FrameError] for params that [Members] refuses, and for a field with a wrong type.
func ReadInitializeParams(params []byte) (InitializeParams, error) {
	want := [...]Member{{Name: "clientId"}, {Name: "protocolVersions"}, {Name: "capabilities"}}
	if err := Members(params, want[:]); err != nil {
		return InitializeParams{}, err
	}
	clientID, err := want[0].text()
	if err != nil {
		return InitializeParams{}, err
	}
	versions, err := want[1].texts()
	if err != nil {
		return InitializeParams{}, err
	}
	return InitializeParams{string(clientID), versions, want[2].Raw}, nil
}

// InitializeResult holds the members of initialize's result a relay reads (AHP, common
// commands).
type InitializeResult struct {
	ProtocolVersion string // chosen by the host; "" when absent

	// ServerInfo is the raw name and version of the host's software, nil when absent.
	// It aliases the result.
	ServerInfo []byte
}

// ReadInitializeResult reads an initialize request's raw result. It fails like
// [ReadInitializeParams].
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

// ReconnectParams holds reconnect's params, as far as a relay reads them. With this
// request a client resumes on a new connection (AHP, common commands).
type ReconnectParams struct {
	ClientID          string   // "" when absent
	LastSeenServerSeq int64    // 0 when absent
	Subscriptions     []string // channel URIs
}

// ReadReconnectParams reads a reconnect request's raw params. It fails like
// [ReadInitializeParams].
func ReadReconnectParams(params []byte) (ReconnectParams, error) {
	want := [...]Member{{Name: "clientId"}, {Name: "lastSeenServerSeq"}, {Name: "subscriptions"}}
	if err := Members(params, want[:]); err != nil {
		return ReconnectParams{}, err
	}
	clientID, err := want[0].text()
	if err != nil {
		return ReconnectParams{}, err
	}
	seq, err := want[1].integer()
	if err != nil {
		return ReconnectParams{}, err
	}
	subscriptions, err := want[2].texts()
	if err != nil {
		return ReconnectParams{}, err
	}
	return ReconnectParams{string(clientID), seq, subscriptions}, nil
}
