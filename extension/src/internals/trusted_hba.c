/*-------------------------------------------------------------------------
 *
 * trusted_hba.c
 *		The rules by which a backend that the dispatcher opens is let in.
 *
 * Its pool's sessions have been let in by the server's rules, which on the server's own port
 * never ask them again.  So nor is a backend asked that is opened for them (opening.c).
 *
 * What PostgreSQL guarantees: ClientAuthentication() goes by the lines that
 * load_hba() (hba.c, 15 to 18) has read last in this process.  The postmaster
 * has, before it forked; a child may do so again, from the file that HbaFileName
 * names, as long as PostmasterContext lives, which PostgresMain() deletes after
 * authentication.  Nobody reads the lines of a backend after that;
 * pg_hba_file_rules reads the file.
 *
 * Checked by the launcher, which has those lines as well (server_rules.c): before
 * it reads the file's for the first time it reads these, and asks whom they let in.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>
#include <unistd.h>

#include "access/xact.h"
#include "libpq/hba.h"
#include "utils/guc.h"

#include "address.h"
#include "self_check.h"
#include "server_rules.h"
#include "trusted_hba.h"

static const char lines[] = "local all all trust\nhost all all all trust\n";

static bool works = true;

static bool
load_lines(bool (*load) (void))
{
	char	   *configured = HbaFileName;
	char		path[64];
	int			fd = memfd_create("pg_baton hba", MFD_CLOEXEC);
	bool		loaded;

	if (fd < 0 || write(fd, lines, sizeof(lines) - 1) != sizeof(lines) - 1)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not write to memory file: %m")));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	HbaFileName = path;
	loaded = load();
	HbaFileName = configured;
	close(fd);
	return loaded;
}

void
baton_trusted_hba_load(void)
{
	if (!load_lines(load_hba))
		ereport(FATAL,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("could not let in a backend of the pool")));
}

static bool
lets_in(sa_family_t family)
{
	/* no role has that name, nor is one read to say so */
	BatonClient client = {.user = "",.database = ""};
	static const uint8 address[16] = {127, 0, 0, 1};
	const HbaLine *line;

	(void) baton_address_make(&client.address, family, 0, address, 0);
	line = baton_rules_match(&client, NULL);
	return line != NULL && line->auth_method == uaTrust;
}

void
baton_trusted_hba_check(void)
{
	/* then each backend sees for itself */
	if (!baton_rules_kept())
		return;

	StartTransactionCommand();
	works = load_lines(baton_rules_load_hba) && lets_in(AF_UNIX) && lets_in(AF_INET) &&
		!baton_self_check_is_broken("trusted_rules");
	CommitTransactionCommand();
	if (!works)
		baton_self_check_failed(BATON_COSTS_BACKENDS, "rules of our own are not gone by");
}

bool
baton_trusted_hba_works(void)
{
	return works;
}
