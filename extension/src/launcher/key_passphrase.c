/*-------------------------------------------------------------------------
 *
 * key_passphrase.c
 *		The passphrase of the server's key, for the dispatcher.
 *
 * The dispatcher starts no program (sys/process.rs), so the launcher runs
 * ssl_passphrase_command for it, with the server's own function, and sends what
 * that printed before each PARAMETERS that has the key loaded.  Nobody but this
 * process says which command that is.
 *
 * run_ssl_passphrase_command() (be-secure-common.c, 15 to 18) reads the first line
 * of what the command prints, without its end, and logs its failure; it does so
 * without a transaction.  A command that takes its time holds up the launcher, as it
 * does the postmaster.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "libpq/libpq.h"
#include "postmaster/postmaster.h"

#include "baton_shared.h"
#include "channel.h"
#include "key_passphrase.h"

/* OpenSSL's own buffer for one (PEM_BUFSIZE). */
#define PASSPHRASE_SIZE 1024

/* The longest key file that is looked at. */
#define KEY_FILE_SIZE (64 * 1024)

/* What OpenSSL asks for one at (ssl_external_passwd_cb, be-secure-openssl.c). */
#define PROMPT "Enter PEM pass phrase:"

/*
 * Both ways in which PEM says so have this word: "BEGIN ENCRYPTED PRIVATE KEY"
 * (PKCS #8), and "Proc-Type: 4,ENCRYPTED" (RFC 1421).  Base64 has no word of
 * capitals before a blank, comma or end of line but by chance; then a command is
 * run whose answer nobody needs.
 */
static bool
is_encrypted(const char *file)
{
	char	   *content = palloc(KEY_FILE_SIZE);
	int			fd = open(file, O_RDONLY | O_CLOEXEC);
	ssize_t		length = fd >= 0 ? read(fd, content, KEY_FILE_SIZE) : -1;
	bool		found = length > 0 && memmem(content, length, "ENCRYPTED", strlen("ENCRYPTED")) != NULL;

	if (fd >= 0)
		close(fd);
	explicit_bzero(content, KEY_FILE_SIZE);
	pfree(content);
	return found;
}

bool
baton_key_passphrase_send(int channel, bool is_start)
{
	char		passphrase[PASSPHRASE_SIZE];
	int			length;
	bool		sent;

	if (!EnableSSL || ssl_passphrase_command[0] == '\0' ||
		(!is_start && !ssl_passphrase_command_supports_reload) ||
		!is_encrypted(ssl_key_file))
		return true;
	length = run_ssl_passphrase_command(PROMPT, false, passphrase, sizeof(passphrase));
	/* whoever waits for nothing says that there was none */
	sent = length <= 0 ||
		baton_channel_send(channel, BATON_MSG_PASSPHRASE, 0, passphrase, length);
	explicit_bzero(passphrase, sizeof(passphrase));
	return sent;
}
