package bucket

// The private parts that tests outside the package are lent.

// Source returns a script as it is loaded, and Common what stands before every one of them.
func Source(name string) string { return loadScript(name).source }

// Common returns the Lua that all scripts share.
func Common() string {
	return readSource("common")
}

// The replies' readers.
var (
	ParseVerdict      = parseVerdict
	ParseView         = parseView
	ParseAsked        = parseAsked
	ParseDue          = parseDue
	ParseGateways     = parseGateways
	ParseBans         = parseBans
	ParseBlock        = parseBlock
	ParseMirror       = parseMirror
	ParseClocks       = parseClocks
	ParseAnnouncement = parseAnnouncement
)
