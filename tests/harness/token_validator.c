/*
 * A validator of bearer tokens (PostgreSQL 18's oauth), as an identity provider has
 * one: a token "<name>.<anything>" is <name>'s, but for those of "nobody".
 */
#include "postgres.h"

#include "fmgr.h"
#include "libpq/oauth.h"

PG_MODULE_MAGIC;

static bool
validate(const ValidatorModuleState *state, const char *token, const char *role,
		 ValidatorModuleResult *result)
{
	const char *end = strchr(token, '.');

	result->authorized = end != NULL && strncmp(token, "nobody.", 7) != 0;
	result->authn_id = end != NULL ? pnstrdup(token, end - token) : NULL;
	return true;
}

static const OAuthValidatorCallbacks callbacks = {
	PG_OAUTH_VALIDATOR_MAGIC,
	.validate_cb = validate
};

const OAuthValidatorCallbacks *
_PG_oauth_validator_module_init(void)
{
	return &callbacks;
}
